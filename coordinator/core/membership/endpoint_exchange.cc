#include "coordinator/core/membership/endpoint_exchange.h"

#include <utility>

#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

absl::Status EndpointExchange::OnEndpoint(size_t node,
                                          const proto::Endpoint& message) {
  if (nodes_.size() == 1) return absl::OkStatus();  // no other node
  if (endpoints_[node]) return InvalidArgument("two endpoints in one epoch");
  if (message.addresses_size() != static_cast<int>(nodes_.size())) {
    return InvalidArgument("an endpoint with ", message.addresses_size(),
                           " addresses for ", nodes_.size(), " nodes");
  }
  for (const std::string& address : message.addresses()) {
    if (address.size() <= kMaxAddressBytes) continue;
    return InvalidArgument("an address of ", address.size(), " bytes; ",
                           kMaxAddressBytes, " are allowed");
  }
  endpoints_[node] = message;
  if (++known_ == nodes_.size()) SendEndpoints();
  return absl::OkStatus();
}

// NCCL refuses to connect GPUs whose processes have different versions of it.
uint32_t EndpointExchange::AgreedNccl() const {
  const uint32_t first = endpoints_.front()->nccl_version();
  for (size_t i = 1; i < nodes_.size(); ++i) {
    const uint32_t other = endpoints_[i]->nccl_version();
    if (other == first) continue;
    nodes_.Warn("no_nccl", " ", nodes_[0].node, "=", first, " ", nodes_[i].node,
                "=", other,
                " reason=\"the nodes' executors must have the same version of "
                "NCCL; CUDA tensors are copied through host memory\"");
    return 0;
  }
  return first;
}

void EndpointExchange::SendEndpoints() {
  nccl_version_ = AgreedNccl();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    proto::CoordinatorMessage message;
    proto::Endpoints* m = message.mutable_endpoints();
    m->set_nccl_version(nccl_version_);
    for (size_t j = 0; j < nodes_.size(); ++j) {
      std::string* address = m->add_addresses();
      if (i != j) {
        *address =
            std::move(*endpoints_[j]->mutable_addresses(static_cast<int>(i)));
      }
    }
    nodes_.Send(i, message);
  }
}

}  // namespace maypole::coordinator
