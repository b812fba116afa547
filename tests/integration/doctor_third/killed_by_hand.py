"""A healthy loop with a list that grows a little; somebody ends it with SIGKILL."""

import os
import signal
import time

import numpy as np

losses = []
weights = np.zeros(1_000_000)
for step in range(400):
    weights *= 0.99
    losses.append(float(weights[0]))
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
