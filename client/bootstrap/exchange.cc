#include "client/bootstrap/exchange.h"

#include <cstdlib>

#include "client/bootstrap/pmix_exchange.h"

namespace maypole {
namespace {

Exchange*& Given() {
  static Exchange* exchange = nullptr;
  return exchange;
}

}  // namespace

void SetExchange(Exchange* exchange) { Given() = exchange; }

Status ExchangeOf(const RankOptions& options, Exchange** out) {
  *out = Given();
  if (*out != nullptr) return Status();
  switch (options.found.launcher) {
    case Launcher::kJsrun:
    case Launcher::kOpenMpi:
      return PmixExchange(out);
    case Launcher::kTorchrun:
      return Status(Code::kUnavailable,
                    "torchrun's store can be used from Python only (import "
                    "maypole.torch)");
    case Launcher::kSlurm:
      // Set only with --mpi=pmix; without it the nodes use ExchangeKind
      // kDerived.
      if (std::getenv("PMIX_NAMESPACE") != nullptr) return PmixExchange(out);
      [[fallthrough]];
    default:
      return Status(Code::kUnavailable,
                    "this launcher carries nothing from node to node");
  }
}

}  // namespace maypole
