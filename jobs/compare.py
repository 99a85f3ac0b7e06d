"""spark-submit jobs/compare.py --config FILE --start D --end D; as of `rankspark compare`."""

import sys

from rankspark.cli import main

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]]))
