"""Networks as ONNX graphs: what acting computes, for runtimes that know nothing of us.

The nodes are written here by hand. Our layers are no torch modules, write into memory of their own and read pictures as
blocks that numpy makes, so torch.onnx would have to trace a second set of modules, and needs one package more; the
nodes are fewer lines than these would be. What keeps them equal to the layers is the parity check of every export.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor

from roboloop.core.fields import MASK, parts_of
from roboloop.core.types import Array, EnvSpec
from roboloop.nets.actions import IMPOSSIBLE
from roboloop.nets.conv import ConvSpec
from roboloop.nets.flat import Views, under
from roboloop.nets.layers import NORM_EPS, as_in_out
from roboloop.nets.mlp import MLPSpec
from roboloop.nets.normalize import CLIP
from roboloop.nets.observations import Fields

OPSET, IR_VERSION = 17, 8
"""The oldest that have LayerNormalization, so that older runtimes can read them too."""
BATCH, OBS, MEMORY, MEMORY_AFTER, ACTION = "batch", "obs", "memory", "memory_after", "action"
_ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "elu": "Elu"}

Value: TypeAlias = str
"""Name of what a node computes, or of an input; rows come first."""


class Graph:
    """A graph in the making: each call adds a node and returns the name of its result."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []

    def input(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Value:
        """Add an input ``[batch, *shape]``."""
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        self._inputs.append(helper.make_tensor_value_info(name, kind, [BATCH, *shape]))
        return name

    def output(self, name: str, value: Value, width: int) -> None:
        """Make a value an output ``[batch, width]``."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, width]))

    def op(self, kind: str, *inputs: Value | Array | Tensor | float, **attributes: Any) -> Value:
        """Add a node of an operator; arrays and numbers become constants."""
        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        result = f"{kind}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, names, [result], **attributes))
        return result

    def _constant(self, values: Array | Tensor | float) -> Value:
        name = f"constant{len(self._constants)}"
        array = values.cpu().numpy() if isinstance(values, Tensor) else values
        array = np.asarray(array, np.float32 if isinstance(values, float) else None, order="C")
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def columns(self, x: Value, begin: int, end: int) -> Value:
        """Return some columns of ``x [batch, columns]``."""
        return self.op("Slice", x, np.array([begin]), np.array([end]), np.array([1]))

    def beside(self, parts: list[Value]) -> Value:
        """Return parts side by side, as columns."""
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=1)

    def model(self, name: str) -> bytes:
        """Return the finished graph as the bytes of an ONNX file."""
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._constants)
        opset = helper.make_operatorsetid("", OPSET)
        model = helper.make_model(graph, producer_name="roboloop", opset_imports=[opset], ir_version=IR_VERSION)
        data: bytes = model.SerializeToString()
        return data


class GraphInputs(NamedTuple):
    """An observation as networks take it."""

    vector: Value | None  # [batch, vector_dim] float32
    pictures: list[Value]  # [batch, channels, height, width] float32, 0 to 255
    mask: Value | None  # [batch, sum of choices] bool


def observation(graph: Graph, spec: EnvSpec, fields: Fields) -> GraphInputs:
    """Add the fields of an observation, frame stack included, as inputs in the environment's own types."""
    inputs: dict[str, Value] = {
        name: graph.input(name or OBS, (*lead(fields.frames), *about.shape), about.dtype)
        for name, about in parts_of(spec).items()
    }
    vectors = [graph.op("Flatten", floats(graph, inputs[name]), axis=1) for name in fields.vectors]
    pictures = [
        graph.op("Reshape", floats(graph, inputs[picture.field]), np.array([-1, *picture[1:]]))
        for picture in fields.pictures
    ]
    mask = None
    if fields.mask_dim:
        # the newest frame comes last
        frames = graph.op("Flatten", graph.op("Cast", inputs[MASK], to=TensorProto.BOOL), axis=1)
        mask = graph.columns(frames, (fields.frames - 1) * fields.mask_dim, fields.frames * fields.mask_dim)
    return GraphInputs(graph.beside(vectors) if vectors else None, pictures, mask)


def lead(frames: int) -> tuple[int, ...]:
    """Return the dim of a frame stack, where there is one."""
    return (frames,) if frames > 1 else ()


def floats(graph: Graph, x: Value) -> Value:
    """Return numbers of any type as float32."""
    return graph.op("Cast", x, to=TensorProto.FLOAT)


def scaled(graph: Graph, x: Value, norm: Array) -> Value:
    """Return (x - shift) * scale, clipped, for ``norm [2, D]``; ``x`` itself where D is zero."""
    if not norm.size:
        return x
    shift, scale = norm
    return graph.op("Clip", graph.op("Mul", graph.op("Sub", x, shift), scale), -CLIP, CLIP)


def linear(graph: Graph, weights: Views, x: Value) -> Value:
    """Return x W + b."""
    return graph.op("Gemm", x, as_in_out(weights["weight"], weights["bias"]), weights["bias"])


def mlp(graph: Graph, spec: MLPSpec, weights: Views, x: Value) -> Value:
    """Return the output rows of a perceptron."""
    for i in range(spec.num_linear):
        x = linear(graph, under(f"linear{i}", weights), x)
        if i < spec.num_hidden:
            if spec.layer_norm:
                norm = under(f"norm{i}", weights)
                x = graph.op("LayerNormalization", x, norm["gain"], norm["bias"], axis=-1, epsilon=NORM_EPS)
            x = graph.op(_ACTIVATIONS[spec.activation], x)
    return x


def conv(graph: Graph, spec: ConvSpec, weights: Views, pixel_norm: Tensor, x: Value) -> Value:
    """Return the features of pictures ``[batch, channels, height, width]`` of 0 to 255."""
    activation = _ACTIVATIONS[spec.activation]
    for i, (kernel, stride) in enumerate(zip(spec.kernels, spec.strides, strict=True)):
        weight, bias = weights[f"conv{i}.weight"], weights[f"conv{i}.bias"]
        side = 1 if i else spec.block
        # [out, y, x, (plane, y in block, x in block)] to [out, plane, y, x] in pixels
        out, blocks = weight.shape[0], kernel // side
        weight = weight.reshape(out, blocks, blocks, -1, side, side).permute(0, 3, 1, 4, 2, 5)
        weight = weight.reshape(out, -1, kernel, kernel)
        if i == 0:
            shift, scale = pixel_norm.view(2, -1, 1, 1)
            weight = weight * scale
            bias = bias - (weight * shift).sum((1, 2, 3))
        x = graph.op(activation, graph.op("Conv", x, weight, bias, strides=[stride, stride]))
    flat = graph.op("Flatten", graph.op("Transpose", x, perm=[0, 2, 3, 1]), axis=1)
    return graph.op(activation, linear(graph, under("full", weights), flat)) if spec.features else flat


def chosen(graph: Graph, choices: tuple[int, ...], outputs: Value, mask: Value | None, squash: bool) -> Value:
    """Return the likeliest actions in units for outputs ``[logits of each choice | continuous actions | ...]``."""
    num_logits, num_continuous = sum(choices), choices.count(0)
    parts: list[Value] = []
    if num_continuous:
        continuous = graph.columns(outputs, num_logits, num_logits + num_continuous)
        continuous = graph.op("Tanh", continuous) if squash else continuous
        if not num_logits:
            return continuous
    logits = graph.columns(outputs, 0, num_logits)
    if mask is not None:
        logits = graph.op("Where", mask, logits, IMPOSSIBLE)
    begin, number = 0, 0
    for n in choices:
        if n:
            best = graph.op("ArgMax", graph.columns(logits, begin, begin + n), axis=1, keepdims=1)
            parts.append(floats(graph, best))
        else:
            parts.append(graph.columns(continuous, number, number + 1))
        begin, number = begin + n, number + (n == 0)
    return graph.beside(parts)
