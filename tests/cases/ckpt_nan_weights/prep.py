import torch

net = torch.nn.Linear(16, 1)
torch.save({"step": 5, "net": net.state_dict()}, "ck5.pt")
net.weight.data[0, 3] = float("inf")
torch.save({"step": 10, "net": net.state_dict()}, "ck10.pt")
