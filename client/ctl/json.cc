#include "client/ctl/json.h"

#include "google/protobuf/util/json_util.h"

namespace maypole::ctl {

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  // Only Any and well-known types can fail; admin.proto has none of them.
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  return text;
}

}  // namespace maypole::ctl
