"""The entry point of `python -m archipelago`; a cluster's Python runs it and may lack packages."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - a job runs on whatever the cluster has
    sys.exit("archipelago: Python 3.11 or newer is needed")


def start() -> None:
    """Run the command; exit with code 2 if one of its dependencies is missing."""
    try:
        from archipelago.cli.main import main
    except ModuleNotFoundError as error:
        print(
            f"archipelago: this Python ({sys.executable}) lacks {error.name}: "
            "install archipelago's dependencies where the cluster's Ray is",
            file=sys.stderr,
        )
        sys.exit(2)
    main()


if __name__ == "__main__":
    start()
