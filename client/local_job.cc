#include "client/local_job.h"

#include <cstring>

#include "common/reduce.h"

namespace maypole {
namespace {

void Copy(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

void Allreduce(Operation& op) {
  const Signature& s = op.signature;
  const double factor = s.prescale * s.postscale;
  if (factor == 1.0) {
    Copy(op.output, op.input, s.Bytes());
  } else {
    Scale(s.dtype, op.input, op.output, static_cast<size_t>(s.Elements()),
          factor);
  }
}

Status Allgather(Operation& op) {
  const uint64_t bytes = op.signature.Bytes();
  op.gathered.reset(
      static_cast<std::byte*>(std::malloc(bytes > 0 ? bytes : 1)));
  if (op.gathered == nullptr) {
    return Status(Code::kResourceExhausted,
                  op.Title() + ": no memory for a result of " +
                      std::to_string(bytes) + " bytes");
  }
  Copy(op.gathered.get(), op.input, bytes);
  op.output = op.gathered.get();
  op.gathered_bytes = bytes;
  op.gathered_rows = op.signature.shape[0];
  return Status();
}

}  // namespace

Status LocalJob::Start(std::shared_ptr<Operation> operation) {
  Operation& op = *operation;
  switch (op.signature.kind) {
    case Kind::kAllreduce:
      Allreduce(op);
      break;
    case Kind::kBroadcast:
      Copy(op.output, op.input, op.signature.Bytes());
      break;
    case Kind::kAllgather:
      op.status = Allgather(op);
      break;
    default:
      break;
  }
  op.done.store(true, std::memory_order_release);
  return Status();
}

}  // namespace maypole
