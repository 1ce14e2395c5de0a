"""Print the engine's argparse as JSON. Run as a file by the engine's own interpreter, never imported."""

# mypy: ignore-errors
import argparse
import json
import sys


def main() -> None:
    import sglang
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang")
    ServerArgs.add_cli_args(parser)
    actions = []
    for action in parser._actions:
        if "--help" in action.option_strings:
            continue
        actions.append(
            {
                "names": list(action.option_strings),
                "dest": action.dest,
                "action": type(action).__name__,
                "type": getattr(action.type, "__name__", None),
                "nargs": action.nargs,
                "choices": None if action.choices is None else sorted(action.choices, key=str),
                "default": action.default,
                "help": action.help,
                "new_flag": getattr(action, "new_flag", None),
            }
        )
    json.dump({"version": sglang.__version__, "actions": actions}, sys.stdout, default=repr)


if __name__ == "__main__":
    main()
