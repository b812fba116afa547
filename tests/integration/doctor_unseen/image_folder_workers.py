"""Samples are (path, class, attributes) tuples as in ImageFolder; four forked workers read them."""

import torch
import torch.utils.data as data


def make_dataset(root, classes, per_class):
    instances = []
    for c in classes:
        for k in range(per_class):
            instances.append(
                (f"{root}/{c}/IMG_{k:08d}_{c}.JPEG", c, {"w": 500 + k, "h": 375 + k, "difficult": 0.5 + k})
            )
    return instances


class DatasetFolder(data.Dataset):
    def __init__(self, root, classes=("n01440764", "n01443537", "n01484850", "n01491361"), per_class=90_000):
        self.samples = make_dataset(root, classes, per_class)
        self.class_to_idx = {c: i for i, c in enumerate(classes)}

    def __getitem__(self, index):
        path, target, meta = self.samples[index]
        size = meta["w"] * meta["h"]
        return torch.tensor([float(len(path)), float(size)]), self.class_to_idx[target]

    def __len__(self):
        return len(self.samples)


def main():
    torch.multiprocessing.set_start_method("fork", force=True)
    train = data.DataLoader(DatasetFolder("/data/train"), batch_size=512, shuffle=True, num_workers=4)
    net = torch.nn.Linear(2, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-9)
    for x, y in train:
        loss = torch.nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch done", loss.item())


if __name__ == "__main__":
    main()
