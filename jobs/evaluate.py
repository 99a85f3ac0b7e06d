"""spark-submit jobs/evaluate.py --config FILE --date D; the same arguments as `rankspark evaluate`."""

import sys

from rankspark.cli import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
