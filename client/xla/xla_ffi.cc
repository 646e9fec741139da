#include "client/xla/xla_ffi.h"

namespace maypole::xla::ffi {
namespace {

constexpr int32_t kMetadataExtension = 1;

// Later fields of the metadata keep the values that XLA has set.
struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct ErrorCreateArguments {
  size_t struct_size;
  Extension* extensions;
  const char* text;
  int32_t code;
};

struct ErrorDestroyArguments {
  size_t struct_size;
  Extension* extensions;
  Error* error;
};

struct FutureArguments {  // of Future_Create, Future_SetAvailable
  size_t struct_size;
  Extension* extensions;
  Future* future;
};

struct FutureErrorArguments {
  size_t struct_size;
  Extension* extensions;
  Future* future;
  Error* error;
};

using Handler = Error* (*)(CallFrame*);

struct RegisterArguments {
  size_t struct_size;
  Extension* extensions;
  ByteSpan name;
  ByteSpan platform;
  Handler instantiate, prepare, initialize, execute;
  uint32_t traits;
};

Layout layout_of_wheel;

template <typename Arguments>
Error* Call(const Api& api, int32_t place, Arguments* arguments) {
  using Function = Error* (*)(Arguments*);
  return reinterpret_cast<Function>(api.functions[place])(arguments);
}

const void* Find(const Attributes& attributes, std::string_view name,
                 int32_t type) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    if (attributes.types[i] == type && attributes.names[i]->text() == name) {
      return attributes.values[i];
    }
  }
  return nullptr;
}

template <typename Value>
const Value* FindScalar(const Attributes& attributes, std::string_view name,
                        int32_t dtype) {
  const auto* scalar =
      static_cast<const Scalar*>(Find(attributes, name, kScalarAttribute));
  if (scalar == nullptr || scalar->dtype != dtype) return nullptr;
  return static_cast<const Value*>(scalar->value);
}

int64_t SizeOfElement(int32_t dtype) {
  switch (dtype) {
    case kPred:
    case kS8:
    case kU8:
      return 1;
    case kS16:
    case kU16:
    case kF16:
    case kBf16:
      return 2;
    case kS32:
    case kU32:
    case kF32:
      return 4;
    case kS64:
    case kU64:
    case kF64:
    case kC64:
      return 8;
    default:
      return 0;
  }
}

}  // namespace

void SetLayout(const Layout& layout) { layout_of_wheel = layout; }

bool AnswersVersion(const CallFrame& frame) {
  for (Extension* e = frame.extensions; e != nullptr; e = e->next) {
    if (e->type != kMetadataExtension) continue;
    Metadata* metadata = reinterpret_cast<MetadataExtension*>(e)->metadata;
    metadata->version.major = layout_of_wheel.major;
    metadata->version.minor = layout_of_wheel.minor;
    metadata->traits = 0;
    return true;
  }
  return false;
}

Error* RegisterHandler(const Api& api, std::string_view name, Handler handler) {
  constexpr std::string_view kPlatform = "Host";
  RegisterArguments arguments = {
      .struct_size = offsetof(RegisterArguments, traits) + sizeof(uint32_t),
      .extensions = nullptr,
      .name = {name.data(), name.size()},
      .platform = {kPlatform.data(), kPlatform.size()},
      .instantiate = nullptr,
      .prepare = nullptr,
      .initialize = nullptr,
      .execute = handler,
      .traits = 0};
  return Call(api, layout_of_wheel.handler_register, &arguments);
}

Error* MakeError(const Api& api, int code, const char* text) {
  ErrorCreateArguments create = {sizeof create, nullptr, text, code};
  return Call(api, layout_of_wheel.error_create, &create);
}

Error* MakeFuture(const Api& api, Future** future) {
  FutureArguments create = {sizeof create, nullptr, nullptr};
  Error* error = Call(api, layout_of_wheel.future_create, &create);
  *future = create.future;
  return error;
}

void Complete(const Api& api, Future* future, Error* error) {
  Error* failure;
  if (error != nullptr) {
    FutureErrorArguments set = {sizeof set, nullptr, future, error};
    failure = Call(api, layout_of_wheel.future_set_error, &set);
  } else {
    FutureArguments set = {sizeof set, nullptr, future};
    failure = Call(api, layout_of_wheel.future_set_available, &set);
  }
  if (failure == nullptr) return;
  ErrorDestroyArguments destroy = {sizeof destroy, nullptr, failure};
  Call(api, layout_of_wheel.error_destroy, &destroy);
}

const ByteSpan* FindString(const Attributes& attributes,
                           std::string_view name) {
  return static_cast<const ByteSpan*>(Find(attributes, name, kStringAttribute));
}

const int32_t* FindInt32(const Attributes& attributes, std::string_view name) {
  return FindScalar<int32_t>(attributes, name, kS32);
}

const double* FindDouble(const Attributes& attributes, std::string_view name) {
  return FindScalar<double>(attributes, name, kF64);
}

int64_t SizeOf(const Buffer& buffer) {
  int64_t bytes = SizeOfElement(buffer.dtype);
  for (int64_t i = 0; i < buffer.rank; ++i) bytes *= buffer.dims[i];
  return bytes;
}

}  // namespace maypole::xla::ffi
