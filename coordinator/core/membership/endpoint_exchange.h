// EndpointExchange: how the nodes of an epoch learn each other's addresses, and
// whether all have the same NCCL.
//
// Purpose: each node sends one Endpoint, with an address for every other node.
// When all have come, each node gets the addresses that the others have for it.
//
//   EndpointExchange endpoints(&nodes);
//   absl::Status s = endpoints.OnEndpoint(node, message);  // bad: an error
//   if (endpoints.nccl_version() != 0) ...GPUs of all nodes can connect...
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_ENDPOINT_EXCHANGE_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_ENDPOINT_EXCHANGE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/membership/epoch_nodes.h"

namespace maypole::coordinator {

class EndpointExchange {
 public:
  // `nodes` must outlive this object.
  explicit EndpointExchange(EpochNodes* nodes)
      : nodes_(*nodes), endpoints_(nodes->size()) {}

  absl::Status OnEndpoint(size_t node, const proto::Endpoint& message);
  // The NCCL version that all nodes have; 0 if they have none in common, or
  // before all endpoints have come.
  uint32_t nccl_version() const { return nccl_version_; }

 private:
  uint32_t AgreedNccl() const;
  void SendEndpoints();

  EpochNodes& nodes_;
  std::vector<std::optional<proto::Endpoint>> endpoints_;  // by node
  size_t known_ = 0;
  uint32_t nccl_version_ = 0;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_ENDPOINT_EXCHANGE_H_
