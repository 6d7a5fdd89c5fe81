"""Two trainings side by side: python demo.py (`make demo` calls it). Each line begins with the mask that says it."""

import signal
import subprocess
import sys
import threading
import time

MASKS = ("ar", "invicl")
TRAIN = [sys.executable, "-m", "minicl", "train", "--preset", "tiny"]


def start(mask, flags):
    """A training in a process of its own, and a thread that repeats what it says."""
    command = [*TRAIN, "--mask", mask, "--out", f"demo/{mask}", *flags]
    # In a session of its own: a Ctrl-C reaches this process alone, which then asks both to stop.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)

    def repeat():
        for line in process.stderr:
            sys.stderr.write(f"{mask}: {line.decode(errors='replace').rstrip()}\n")  # at once: two threads do

    thread = threading.Thread(target=repeat)
    thread.start()
    return process, thread


def main(flags):
    """Until both are done; if one fails or a signal comes, both stop, and the status says so."""
    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *given: stopped.append(given[0]))
    trainings = [start(mask, flags) for mask in MASKS]
    processes = [process for process, _ in trainings]
    while any(p.poll() is None for p in processes) and not any(p.poll() for p in processes) and not stopped:
        time.sleep(0.1)
    for process in processes:
        process.terminate()
    for process, thread in trainings:
        process.wait()
        thread.join()
    return 128 + stopped[0] if stopped else int(any(p.returncode for p in processes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
