#include "client/ctl/json.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/descriptor.h"

namespace maypole::ctl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < ' ' || byte == 0x7f) {
      absl::StrAppendFormat(&out, "\\u%04x", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.6f", value) : "null";
}

std::string Scalar(const Message& m, const FieldDescriptor& f, int i) {
  const Reflection& r = *m.GetReflection();
  const bool many = f.is_repeated();
  switch (f.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(many ? r.GetRepeatedInt32(m, &f, i)
                               : r.GetInt32(m, &f));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(many ? r.GetRepeatedInt64(m, &f, i)
                               : r.GetInt64(m, &f));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(many ? r.GetRepeatedUInt32(m, &f, i)
                               : r.GetUInt32(m, &f));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(many ? r.GetRepeatedUInt64(m, &f, i)
                               : r.GetUInt64(m, &f));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(many ? r.GetRepeatedDouble(m, &f, i) : r.GetDouble(m, &f));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (many ? r.GetRepeatedBool(m, &f, i) : r.GetBool(m, &f)) ? "true"
                                                                     : "false";
    case FieldDescriptor::CPPTYPE_STRING:
      return Quoted(many ? r.GetRepeatedString(m, &f, i) : r.GetString(m, &f));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Json(many ? r.GetRepeatedMessage(m, &f, i) : r.GetMessage(m, &f));
    default:
      return "null";
  }
}

}  // namespace

std::string Json(const Message& message) {
  const auto& descriptor = *message.GetDescriptor();
  std::string out = "{";
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    absl::StrAppend(&out, i > 0 ? ", " : "", Quoted(field.name()), ": ");
    if (!field.is_repeated()) {
      out += Scalar(message, field, 0);
      continue;
    }
    out += "[";
    const int size = message.GetReflection()->FieldSize(message, &field);
    for (int j = 0; j < size; ++j) {
      absl::StrAppend(&out, j > 0 ? ", " : "", Scalar(message, field, j));
    }
    out += "]";
  }
  return out + "}";
}

}  // namespace maypole::ctl
