"""skorch: the optimizer goes in as a class, its options as optimizer__name."""

import numpy as np
import torch
from skorch import NeuralNetClassifier

import hyperadam

torch.manual_seed(0)
x = torch.randn(600, 6)
y = (x[:, :3] * x[:, 3:]).argmax(1)
x, y = x.numpy(), y.numpy()

net = NeuralNetClassifier(
    torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)),
    criterion=torch.nn.CrossEntropyLoss,
    optimizer=hyperadam.HyperAdam,
    optimizer__weight_decay=0.001,
    lr=0.005,  # skorch has a default of its own, 0.01
    batch_size=50,
    max_epochs=40,
    train_split=None,
    verbose=0,
)
net.fit(x, y)
print(f"accuracy {np.mean(net.predict(x) == y):.2f}")
losses = net.history[:, "train_loss"]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
