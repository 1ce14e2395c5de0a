"""The guard beside the server: stops it before the machine freezes, and notices when it no longer answers."""
