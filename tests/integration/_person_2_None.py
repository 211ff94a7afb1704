
import logging, sys
sys.path[:0] = ['/work/wt/c/tests', '/work/wt/c/tests', '/work/wt/c/benchmarks', '/work/wt/c', '/work/wt/c/tests', '/work/wt/c/benchmarks', '/work/wt/c', '/work/wt/c', '/work/wt/c/src', '/root/.pyenv/versions/3.11.7/lib/python311.zip', '/root/.pyenv/versions/3.11.7/lib/python3.11', '/root/.pyenv/versions/3.11.7/lib/python3.11/lib-dynload', '/work/main/.venv/lib/python3.11/site-packages', '/work/main/src']
import plesio as ps
from integration.test_what_a_person_sees import speaking

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    ps.run(speaking, "sync_sgd", workers=2, progress=None, pace=0.02)
