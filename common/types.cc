#include "common/types.h"

namespace maypole {
namespace {

struct DTypeRow {
  std::string_view name;
  size_t size;
};
constexpr DTypeRow kDTypeRows[kDTypes] = {
    {"uint8", 1},   {"int8", 1},  {"uint16", 2},  {"int16", 2},
    {"int32", 4},   {"int64", 8}, {"float16", 2}, {"float32", 4},
    {"float64", 8}, {"bool", 1},  {"bfloat16", 2}};
constexpr std::string_view kOpNames[kOps] = {"average", "sum", "adasum",
                                             "min",     "max", "product"};
constexpr std::string_view kKindNames[kKinds] = {
    "allreduce",     "allgather", "broadcast", "alltoall",
    "reducescatter", "barrier",   "join"};

}  // namespace

size_t SizeOf(DType d) {
  return IsKnown(d) ? kDTypeRows[static_cast<int>(d)].size : 0;
}
std::string_view Name(DType d) {
  return IsKnown(d) ? kDTypeRows[static_cast<int>(d)].name : "unknown";
}
std::string_view Name(Op o) {
  return IsKnown(o) ? kOpNames[static_cast<int>(o)] : "unknown";
}
std::string_view Name(Kind k) {
  return IsKnown(k) ? kKindNames[static_cast<int>(k)] : "unknown";
}

}  // namespace maypole
