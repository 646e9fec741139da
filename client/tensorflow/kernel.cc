#include "client/tensorflow/kernel.h"

#include <cstring>
#include <memory>

namespace maypole::tensorflow {

frameworks::Functions library;

namespace {

std::string Text(TF_OpKernelConstruction* node, const char* attribute,
                 Status& status) {
  int32_t list_size = 0;
  int32_t bytes = 0;
  tf.TF_OpKernelConstruction_GetAttrSize(node, attribute, &list_size, &bytes,
                                         status);
  if (!status.ok() || bytes <= 0) return "";
  std::string text(bytes, '\0');
  tf.TF_OpKernelConstruction_GetAttrString(node, attribute, text.data(),
                                           text.size(), status);
  return text;
}

int64_t Number(TF_OpKernelConstruction* node, const char* attribute,
               Status& status) {
  int64_t number = 0;
  if (status.ok()) {
    tf.TF_OpKernelConstruction_GetAttrInt64(node, attribute, &number, status);
  }
  return number;
}

// TensorFlow's attributes have floats but no doubles, so the double's bits are
// passed.
double Factor(TF_OpKernelConstruction* node, const char* attribute,
              Status& status) {
  const int64_t bits = Number(node, attribute, status);
  double factor;
  std::memcpy(&factor, &bits, sizeof factor);
  return factor;
}

}  // namespace

std::string Kernel::MemberName(int member, int count) const {
  if (name.empty() || count == 1) return name;
  return name + "." + std::to_string(member) + "of" + std::to_string(count);
}

Kernel* Kernel::Create(maypole_kind kind, TF_OpKernelConstruction* node) {
  auto kernel = std::make_unique<Kernel>();
  Status status;
  kernel->kind = kind;
  kernel->name = Text(node, "tensor_name", status);
  if (kind != MAYPOLE_JOIN) {
    kernel->process_set = Number(node, "process_set_id", status);
  }
  if (kind == MAYPOLE_BROADCAST) {
    kernel->root_rank = Number(node, "root_rank", status);
  }
  if (kernel->Reduces()) {
    kernel->reduction = Number(node, "reduce_op", status);
    kernel->prescale = Factor(node, "prescale_bits", status);
    kernel->postscale = Factor(node, "postscale_bits", status);
  }
  if (status.ok()) return kernel.release();
  tf.TF_OpKernelConstruction_Failure(node, status);
  return nullptr;
}

}  // namespace maypole::tensorflow
