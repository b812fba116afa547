"""An actor-critic agent remembers values and log-probabilities of all episodes."""

import torch
from torch.distributions import Categorical


class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Tanh())
        self.pi, self.v = torch.nn.Linear(256, 8), torch.nn.Linear(256, 1)
        self.history = {"logp": [], "value": [], "reward": []}

    def act(self, obs):
        h = self.body(obs)
        dist = Categorical(logits=self.pi(h))
        action = dist.sample()
        self.history["logp"].append(dist.log_prob(action))
        self.history["value"].append(self.v(h))
        return action

    def learn(self, opt, since):
        rewards = torch.stack(self.history["reward"][since:])
        logp = torch.stack(self.history["logp"][since:])
        value = torch.stack(self.history["value"][since:]).squeeze(-1)
        advantage = rewards - value
        loss = -(logp * advantage.detach()).mean() + advantage.pow(2).mean()
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
        return loss


agent = Agent()
opt = torch.optim.SGD(agent.parameters(), 1e-4)
for episode in range(400):
    start = len(agent.history["reward"])
    for _ in range(20):
        agent.act(torch.randn(256, 128))
        agent.history["reward"].append(torch.randn(256))
    loss = agent.learn(opt, start)
    if episode % 20 == 0:
        print(episode, loss.item(), flush=True)
