"""Everything that knows SGLang: its HTTP interface, its log, its metrics and /server_info."""
