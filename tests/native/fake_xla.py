"""As much of XLA's runtime as a handler sees, so that handlers run with any stream, device and address.

The structures are those of xla/ffi/api/c_api.h, which XLA keeps compatible.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

STAGES = {"instantiate": 0, "execute": 3}
DTYPES = {"bfloat16": 16, "float16": 10, "float32": 11, "int8": 2, "int32": 4, "uint8": 6, "float64": 12}
SCALAR_S64, ARRAY, SCALAR, STRING = 5, 1, 3, 4


class Header(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension_start", c_void_p)]


def _structure(name: str, *fields: tuple[str, Any]) -> type:
    return type(name, (Header,), {"_fields_": list(fields)})


ApiVersion = _structure("ApiVersion", ("major", c_int), ("minor", c_int))
ErrorCreate = _structure("ErrorCreate", ("message", c_char_p), ("code", c_int))
ErrorMessage = _structure("ErrorMessage", ("error", c_void_p), ("message", c_char_p))
ErrorDestroy = _structure("ErrorDestroy", ("error", c_void_p))
FfiBuffer = _structure("FfiBuffer", ("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", c_void_p))
State = _structure("State", ("ctx", c_void_p), ("stage", c_int), ("type_id", c_void_p), ("state", c_void_p))
StreamGet = _structure("StreamGet", ("ctx", c_void_p), ("stream", c_void_p))
Args = _structure("Args", ("size", c_int64), ("types", c_void_p), ("args", c_void_p))
Attrs = _structure("Attrs", ("size", c_int64), ("types", c_void_p), ("names", c_void_p), ("attrs", c_void_p))
CallFrame = _structure(
    "CallFrame", ("api", c_void_p), ("ctx", c_void_p), ("stage", c_int), ("args", Args), ("rets", Args),
    ("attrs", Attrs), ("future", c_void_p),
)  # fmt: skip


class ByteSpan(Structure):
    _fields_ = [("ptr", c_char_p), ("len", c_size_t)]


class Scalar(Structure):
    _fields_ = [("dtype", c_int), ("value", c_void_p)]


class Array(Structure):
    _fields_ = [("dtype", c_int), ("size", c_size_t), ("data", c_void_p)]


class Metadata(Structure):
    _fields_ = [("struct_size", c_size_t), ("version", ApiVersion), ("traits", c_uint32), ("state_type_id", c_int64)]


class MetadataExtension(Structure):
    _fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", c_void_p)]


_API_ENTRIES = (
    "ErrorCreate", "ErrorGetMessage", "ErrorDestroy", "HandlerRegister", "StreamGet", "TypeRegister", "ContextGet",
    "StateSet", "StateGet", "Allocate", "Free", "Schedule", "NumThreads", "FutureCreate", "FutureSetAvailable",
    "FutureSetError", "RunIdGet", "DeviceOrdinalGet",
)  # fmt: skip
Api = _structure("Api", ("version", ApiVersion), ("internal", c_void_p), *((name, c_void_p) for name in _API_ENTRIES))
HANDLER = CFUNCTYPE(c_void_p, POINTER(CallFrame))

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = c_void_p, [ctypes.py_object, c_char_p]


class HandlerError(Exception):
    """What a handler returned as an error; `code` as in XLA_FFI_Error_Code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Runtime:
    """Calls handlers. `stream` None: the call has none, as on the CPU."""

    def __init__(self, stream: int | None = None) -> None:
        self.stream = stream
        self.state: int | None = None
        self._errors: dict[int, HandlerError] = {}
        self._callbacks: list[Any] = []  # kept alive as long as the table
        self._api = Api(struct_size=ctypes.sizeof(Api), version=ApiVersion(struct_size=24, major=0, minor=3))
        for entry, argument, function in (
            ("ErrorCreate", ErrorCreate, self._error_create), ("ErrorGetMessage", ErrorMessage, self._error_message),
            ("ErrorDestroy", ErrorDestroy, self._error_destroy), ("StreamGet", StreamGet, self._stream_get),
            ("StateSet", State, self._state_set), ("StateGet", State, self._state_get),
        ):  # fmt: skip
            callback = CFUNCTYPE(c_void_p, POINTER(argument))(lambda pointer, f=function: f(pointer.contents))
            self._callbacks.append(callback)
            setattr(self._api, entry, ctypes.cast(callback, c_void_p))

    def _new_error(self, code: int, message: str) -> int:
        handle = len(self._errors) + 1
        self._errors[handle] = HandlerError(code, message)
        return handle

    def _error_create(self, args: Any) -> int:
        return self._new_error(args.code, args.message.decode())

    def _error_message(self, args: Any) -> None:
        args.message = str(self._errors[args.error]).encode()

    def _error_destroy(self, args: Any) -> None:
        self._errors.pop(args.error)

    def _stream_get(self, args: Any) -> int | None:
        if self.stream is None:
            return self._new_error(12, "no stream on this platform")
        args.stream = self.stream
        return None

    def _state_set(self, args: Any) -> None:
        self.state = args.state

    def _state_get(self, args: Any) -> int | None:
        if self.state is None:
            return self._new_error(5, "no state at this stage")
        args.state = self.state
        return None

    def call(
        self,
        handler: Any,
        stage: str,
        attributes: dict[str, Any] | None = None,
        arguments: list[tuple[int, str, tuple[int, ...]]] | None = None,
        results: list[tuple[int, str, tuple[int, ...]]] | None = None,
    ) -> None:
        """One call of a capsule's handler. Buffers are (address, dtype, shape). Raises HandlerError."""
        keep: list[Any] = []
        frame = CallFrame(
            struct_size=CallFrame.future.offset, api=ctypes.addressof(self._api), stage=STAGES[stage],
            args=_buffers(arguments or [], keep), rets=_buffers(results or [], keep),
            attrs=_attributes(attributes or {}, keep),
        )  # fmt: skip
        error = HANDLER(_pointer_of(handler, None))(byref(frame))
        if error:
            raise self._errors.pop(error)

    def traits(self, handler: Any) -> tuple[tuple[int, int], int]:
        """(FFI API version that the handler was built on, its trait bits)."""
        metadata = Metadata(struct_size=ctypes.sizeof(Metadata))
        extension = MetadataExtension(
            struct_size=ctypes.sizeof(MetadataExtension), type=1, metadata=ctypes.addressof(metadata)
        )
        frame = CallFrame(
            struct_size=CallFrame.future.offset, api=ctypes.addressof(self._api), stage=3,
            extension_start=ctypes.addressof(extension),
        )  # fmt: skip
        error = HANDLER(_pointer_of(handler, None))(byref(frame))
        if error:
            raise self._errors.pop(error)
        return (metadata.version.major, metadata.version.minor), metadata.traits


def _pointers(objects: list[Any], keep: list[Any]) -> int:
    table = (c_void_p * max(len(objects), 1))(*(ctypes.addressof(item) for item in objects))
    keep += [table, *objects]
    return ctypes.addressof(table)


def _types(types: list[int], keep: list[Any]) -> int:
    table = (c_int * max(len(types), 1))(*types)
    keep.append(table)
    return ctypes.addressof(table)


def _buffers(buffers: list[tuple[int, str, tuple[int, ...]]], keep: list[Any]) -> Any:
    items = []
    for address, dtype, shape in buffers:
        dims = (c_int64 * max(len(shape), 1))(*shape)
        keep.append(dims)
        items.append(FfiBuffer(
            struct_size=ctypes.sizeof(FfiBuffer), dtype=DTYPES[dtype], data=address, rank=len(shape),
            dims=ctypes.addressof(dims),
        ))  # fmt: skip
    return Args(
        struct_size=ctypes.sizeof(Args), size=len(items), types=_types([1] * len(items), keep),
        args=_pointers(items, keep),
    )  # fmt: skip


def _attributes(attributes: dict[str, Any], keep: list[Any]) -> Any:
    names, types, values = [], [], []
    for name, value in sorted(attributes.items()):  # XLA passes them in the order of their names
        names.append(ByteSpan(name.encode(), len(name)))
        if isinstance(value, str):
            types.append(STRING)
            values.append(ByteSpan(value.encode(), len(value.encode())))
        elif isinstance(value, int):
            number = c_int64(value)
            keep.append(number)
            types.append(SCALAR)
            values.append(Scalar(SCALAR_S64, ctypes.addressof(number)))
        else:
            numbers = (c_int64 * max(len(value), 1))(*value)
            keep.append(numbers)
            types.append(ARRAY)
            values.append(Array(SCALAR_S64, len(value), ctypes.addressof(numbers)))
    return Attrs(
        struct_size=ctypes.sizeof(Attrs), size=len(values), types=_types(types, keep), names=_pointers(names, keep),
        attrs=_pointers(values, keep),
    )  # fmt: skip
