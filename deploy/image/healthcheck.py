"""Whether the program in this container lives: asks one address and ends with 0 or 1. Standard library only, since it
is started again and again.

It asks its own machine, so it takes any certificate.
"""

# ruff: noqa: INP001 - a file by itself in the image
import ssl
import sys
import urllib.error
import urllib.request


def is_well(url: str) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=2, context=context) as answer:  # noqa: S310 - the image's own address
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError) as error:
        sys.stderr.write(f"{url}: {error}\n")
        return False


if __name__ == "__main__":
    sys.exit(0 if is_well(sys.argv[1]) else 1)
