import subprocess


def shell(command: str) -> str:
    """Run a shell command and return what it prints."""
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout + f"exit code {done.returncode}"
