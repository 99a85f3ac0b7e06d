"""spark-submit jobs/evaluate.py --config FILE --date D; arguments as of `rankspark evaluate`."""

import sys

from rankspark.cli import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
