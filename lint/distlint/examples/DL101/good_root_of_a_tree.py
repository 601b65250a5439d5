import torch.distributed as dist


class Node:
    def __init__(self, parent, children):
        self.root = parent is None
        self.children = children

    def visit(self, statistics):
        if self.root:
            dist.all_reduce(statistics)
        for child in self.children:
            child.visit(statistics)
