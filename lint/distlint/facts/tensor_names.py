"""Names of torch by what they do to the device of a tensor."""

from __future__ import annotations

import re

# Functions that make a tensor on the CPU unless told otherwise, by what their first arguments say of its rank.
BY_SIZE = frozenset({"empty", "ones", "rand", "randn", "zeros"})
ALWAYS_RANKED = frozenset(
    {
        "FloatTensor",
        "LongTensor",
        "arange",
        "blackman_window",
        "eye",
        "from_numpy",
        "hamming_window",
        "hann_window",
        "kaiser_window",
        "linspace",
        "logspace",
        "randperm",
        "tril_indices",
        "triu_indices",
    }
)
BY_VALUE = frozenset({"as_tensor", "tensor"})
SIZED_LATER = {"full": 0, "randint": None, "normal": None}
FACTORIES = BY_SIZE | ALWAYS_RANKED | BY_VALUE | SIZED_LATER.keys() | {"Tensor"}

# Methods whose result is the same tensor, or a copy of it, wherever it is. What else passes a value on depends on what
# is asked: a mean hands a metric on and not its examples, ``float()`` a value and not its type.
SAME = frozenset({"clone", "contiguous", "cpu", "cuda", "detach", "to"})
TO_FLOAT = frozenset({"double", "float"})
# Methods that give the same elements another shape.

# Methods that bring a tensor to a device, and those that leave tensors altogether.
MOVES = frozenset({"cuda", "to", "to_device", "type", "type_as", "xpu"})
LEAVES = frozenset({"dim", "item", "nelement", "numel", "numpy", "size", "tolist", "get_device", "element_size"})

# Functions that want lengths on the CPU.
TAKES_LENGTHS = frozenset({"len", "max", "pack_padded_sequence", "split"})

# Methods whose result lives where the tensor does, and has elements of its own rank or a higher one.
KEEPS = frozenset(
    {
        "abs",
        "bool",
        "byte",
        "ceil",
        "clamp",
        "clone",
        "contiguous",
        "cos",
        "cumsum",
        "detach",
        "double",
        "exp",
        "expand",
        "expand_as",
        "fill_",
        "flatten",
        "flip",
        "float",
        "floor",
        "half",
        "int",
        "log",
        "logical_not",
        "long",
        "neg",
        "normal_",
        "permute",
        "pow",
        "reciprocal",
        "repeat",
        "repeat_interleave",
        "requires_grad_",
        "reshape",
        "round",
        "sigmoid",
        "sin",
        "softmax",
        "sqrt",
        "square",
        "t",
        "tanh",
        "transpose",
        "tril",
        "triu",
        "uniform_",
        "unsqueeze",
        "view",
        "zero_",
    }
)
# Of these, the ones that give a dimension to a tensor of unknown rank.
RANKS = frozenset({"unsqueeze", "repeat", "expand"})
SHAPES = frozenset({"view", "reshape"})

# Functions of ``torch`` and methods of tensors that refuse tensors of two devices.
MEETS = frozenset(
    {
        "add",
        "addmm",
        "baddbmm",
        "bmm",
        "cat",
        "cdist",
        "concat",
        "cross",
        "div",
        "dot",
        "einsum",
        "eq",
        "gather",
        "ge",
        "gt",
        "hstack",
        "index_select",
        "kron",
        "le",
        "lerp",
        "logical_and",
        "logical_or",
        "lt",
        "masked_fill",
        "masked_fill_",
        "masked_select",
        "matmul",
        "maximum",
        "minimum",
        "mm",
        "mul",
        "multiply",
        "mv",
        "ne",
        "outer",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "stack",
        "sub",
        "take_along_dim",
        "vstack",
        "where",
    }
)
FUNCTIONAL_MEETS = frozenset(
    {
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "cosine_embedding_loss",
        "cosine_similarity",
        "cross_entropy",
        "embedding",
        "grid_sample",
        "huber_loss",
        "kl_div",
        "l1_loss",
        "linear",
        "mse_loss",
        "nll_loss",
        "pairwise_distance",
        "smooth_l1_loss",
    }
)
# Layers of torch.nn that have parameters, or compare what they are given.
LAYERS = frozenset(
    {
        "BCELoss",
        "BCEWithLogitsLoss",
        "BatchNorm1d",
        "BatchNorm2d",
        "Bilinear",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "ConvTranspose1d",
        "ConvTranspose2d",
        "CrossEntropyLoss",
        "Embedding",
        "EmbeddingBag",
        "GRU",
        "GRUCell",
        "GroupNorm",
        "LSTM",
        "LSTMCell",
        "LayerNorm",
        "Linear",
        "MultiheadAttention",
        "RNN",
        "Transformer",
        "TransformerDecoder",
        "TransformerDecoderLayer",
        "TransformerEncoder",
        "TransformerEncoderLayer",
    }
)
# Modules with these words in their names work on the CPU, in the loader.
HOST_WORDS = re.compile(
    r"augment|collat|crop|cutmix|dataset|flip|mixup|preprocess|processor|random|resize|tokenizer|transform(?!er)"
)
