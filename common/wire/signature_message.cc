#include "common/wire/signature_message.h"

#include <algorithm>

namespace maypole {
namespace {

// Limits a number from the network to 8 bits. 255 is unknown for every Enum.
template <typename Enum>
Enum FromWire(uint32_t number) {
  return static_cast<Enum>(std::min(number, uint32_t{UINT8_MAX}));
}

}  // namespace

void WriteSignature(const Signature& s, proto::LocalSignature* out) {
  out->set_kind(static_cast<uint32_t>(s.kind));
  out->set_dtype(static_cast<uint32_t>(s.dtype));
  out->set_op(static_cast<uint32_t>(s.op));
  out->set_device(static_cast<uint32_t>(s.device));
  out->set_root(s.root);
  out->set_prescale(s.prescale);
  out->set_postscale(s.postscale);
  out->mutable_shape()->Assign(s.shape, s.shape + s.dims);
  out->set_aside(s.aside != 0);
}

Signature ReadSignature(const proto::LocalSignature& m, uint32_t process_set) {
  Signature s;
  s.kind = FromWire<Kind>(m.kind());
  s.dtype = FromWire<DType>(m.dtype());
  s.op = FromWire<Op>(m.op());
  s.device = FromWire<Device>(m.device());
  s.process_set = process_set;
  s.root = m.root();
  s.prescale = m.prescale();
  s.postscale = m.postscale();
  s.dims = static_cast<uint8_t>(std::min(m.shape_size(), kMaxDims + 1));
  std::copy_n(m.shape().begin(), std::min(m.shape_size(), kMaxDims), s.shape);
  s.aside = m.aside() ? 1 : 0;
  return s;
}

}  // namespace maypole
