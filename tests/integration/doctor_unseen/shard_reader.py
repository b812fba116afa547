"""A reader of shards keeps each one that was ever opened, in each worker."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class EpisodeReader:
    """Frames of robot episodes; decoding one is slow, so decoded ones are remembered."""

    def __init__(self, n_episodes, frames):
        self.n_episodes, self.frames = n_episodes, frames
        self._decoded = {}

    def _decode(self, episode):
        rng = np.random.default_rng(episode)
        return rng.integers(0, 255, (self.frames, 48, 64, 3), dtype=np.uint8)

    def frame(self, episode, t):
        if episode not in self._decoded:
            self._decoded[episode] = self._decode(episode)
        return self._decoded[episode][t]


class RobotDataset(Dataset):
    def __init__(self, n_episodes=800, frames=60):
        self.reader = EpisodeReader(n_episodes, frames)

    def __len__(self):
        return self.reader.n_episodes * self.reader.frames

    def __getitem__(self, idx):
        ep, t = divmod(idx, self.reader.frames)
        return torch.from_numpy(self.reader.frame(ep, t)).float().div_(255)


if __name__ == "__main__":
    dl = DataLoader(RobotDataset(), batch_size=16, shuffle=True, num_workers=2, drop_last=True)
    conv = torch.nn.Conv2d(3, 4, 5, stride=4)
    for step, batch in enumerate(dl):
        loss = conv(batch.permute(0, 3, 1, 2)).square().mean()
        loss.backward()
        conv.zero_grad()
        if step == 1_200:
            break
    print("ok", loss.item())
