"""The web app: `python app.py`."""


def main() -> None:
    """Serve the pages. The imports are local because the process of every analysis imports the main module again."""
    from components import launch

    launch.main()


if __name__ == "__main__":
    main()
