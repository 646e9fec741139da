// The part of XLA's foreign function interface (FFI) that a handler needs, with
// names of our own: XLA is not a dependency of this library.
//
// Source: xla/ffi/api/c_api.h (github.com/openxla/xla), a C interface, which
// the wheels of jaxlib and TensorFlow contain below their include directories.
// The structs below are the same from version 0.1 (jaxlib 0.4.38, TensorFlow
// 2.18) to 0.3 (jaxlib 0.10.2): fields were only appended. The table of
// functions is not: functions were inserted without a change of the version. So
// Python reads the version and the functions' positions from the wheel's
// header, and passes them to SetLayout().
//
// Thread contract: SetLayout() once, before the other functions, which any
// thread may call.
#ifndef MAYPOLE_CLIENT_XLA_XLA_FFI_H_
#define MAYPOLE_CLIENT_XLA_XLA_FFI_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace maypole::xla::ffi {

struct Error;
struct Future;

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major;
  int32_t minor;
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  void* functions[64];  // as many as the wheel's header has
};

enum DataType : int32_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBf16 = 16,
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  int32_t dtype;  // DataType
  void* data;
  int64_t rank;
  int64_t* dims;
};

// Arguments or results.
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;
  Buffer** items;
};

struct ByteSpan {
  const char* data;
  size_t size;
  std::string_view text() const { return {data, size}; }
};

struct Scalar {
  int32_t dtype;  // DataType
  const void* value;
};

enum AttributeType : int32_t { kScalarAttribute = 3, kStringAttribute = 4 };

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;  // AttributeType
  ByteSpan** names;
  void** values;  // Scalar or ByteSpan
};

enum Stage : int32_t { kExecute = 3 };

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  int32_t stage;  // Stage
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  Future* future;  // out: XLA keeps arguments and results until it is completed
};

// The indices of these functions in Api::functions, by the wheel's header.
struct Layout {
  int32_t major = 0;
  int32_t minor = 0;
  int32_t error_create = 0;
  int32_t error_destroy = 0;
  int32_t future_create = 0;
  int32_t future_set_available = 0;
  int32_t future_set_error = 0;
  int32_t handler_register = 0;
};

void SetLayout(const Layout& layout);

// True if XLA only asks for which version the handler was made; then this has
// answered with that of the wheel's header.
bool AnswersVersion(const CallFrame& frame);

// Registers `handler` with XLA for custom calls of this name on CPUs. Returns
// an error or null.
Error* RegisterHandler(const Api& api, std::string_view name,
                       Error* (*handler)(CallFrame*));

// `code` is one of gRPC's, as XLA's are. `text` ends with a 0.
Error* MakeError(const Api& api, int code, const char* text);

// Returns an error, or null and a future, which must be passed to Complete()
// once.
Error* MakeFuture(const Api& api, Future** future);

// Completes the future; `error` is from MakeError(), or null. XLA may continue
// the program on the calling thread before this returns.
void Complete(const Api& api, Future* future, Error* error);

// The attribute's value; null if there is none of this name and type.
const ByteSpan* FindString(const Attributes& attributes, std::string_view name);
const int32_t* FindInt32(const Attributes& attributes, std::string_view name);
const double* FindDouble(const Attributes& attributes, std::string_view name);

// Bytes of the buffer; 0 for a type that has no entry in DataType.
int64_t SizeOf(const Buffer& buffer);

}  // namespace maypole::xla::ffi

#endif  // MAYPOLE_CLIENT_XLA_XLA_FFI_H_
