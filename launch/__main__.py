"""`python -m launch`: the same as `sparkserve`."""

from launch.cli import main

if __name__ == "__main__":
    main()
