"""`python tether.py PARENT_PID COMMAND ...`: becomes the command, which then ends by SIGTERM when its parent dies.

That is Linux's, and holds even where the parent is killed outright; elsewhere the command is merely run. A program of
its own, because code between fork and exec can hang where the parent has threads; it is run by its path, without this
package.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it, and so would the trainer
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the line above
            sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
