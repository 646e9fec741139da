#include "common/gpu/runner/nccl/communicators.h"

#include <cstring>
#include <utility>

#include "common/gpu/nccl/nccl.h"

namespace maypole {

Communicators::Communicators(std::string library, NcclTimeouts timeouts)
    : library_(std::move(library)), timeouts_(timeouts) {}

StatusOr<std::string> Communicators::MakeId() const {
  const nccl::Nccl* nccl = nullptr;
  Status s = nccl::OpenNccl(library_, &nccl);
  nccl::ncclUniqueId id = {};
  if (s.ok()) {
    s = NcclStatus(*nccl, nccl->ncclGetUniqueId(&id), "ncclGetUniqueId");
  }
  if (!s.ok()) return s;
  return std::string(id.internal, sizeof(id.internal));
}

Status Communicators::CheckConnect(const GpuCommunicator& c, size_t gpus,
                                   const std::string& id) const {
  if (id.size() == sizeof(nccl::ncclUniqueId) && gpus > 0 &&
      gpus == c.gpus.size() && c.first <= c.size && gpus <= c.size - c.first &&
      c.size <= INT32_MAX) {
    return {};
  }
  return Status(Code::kInvalidArgument,
                "communicator " + std::to_string(c.number) +
                    " cannot be connected: " + std::to_string(gpus) + " of " +
                    std::to_string(c.size) + " GPUs from NCCL rank " +
                    std::to_string(c.first) + ", and an id of " +
                    std::to_string(id.size()) + " bytes");
}

void Communicators::Connect(GpuCommunicator communicator,
                            std::vector<const cuda::Gpu*> gpus,
                            const std::string& id) {
  const uint32_t number = communicator.number;
  if (number == 0 || number > kMaxGpuCommunicators || parts_.contains(number)) {
    return;  // see Find()
  }
  if (Status s = CheckConnect(communicator, gpus.size(), id); !s.ok()) {
    refused_.emplace(number, std::move(s));
    return;
  }
  nccl::ncclUniqueId bytes;
  std::memcpy(bytes.internal, id.data(), sizeof(bytes.internal));
  parts_.emplace(
      number, CommunicatorPart::Make(std::move(communicator), std::move(gpus),
                                     bytes, library_, timeouts_.connect));
}

bool Communicators::IsNew(uint32_t number) const {
  const auto it = parts_.find(number);
  return it != parts_.end() &&
         it->second->state() == CommunicatorPart::State::kNew;
}

void Communicators::Begin(uint32_t number) {
  const auto it = parts_.find(number);
  if (it != parts_.end()) it->second->Connect();
}

StatusOr<CommunicatorPart*> Communicators::Find(uint32_t number) const {
  if (number > kMaxGpuCommunicators) {
    return Status(Code::kResourceExhausted,
                  "an epoch may have " + std::to_string(kMaxGpuCommunicators) +
                      " communicators of GPUs, but this is number " +
                      std::to_string(number));
  }
  if (const auto it = refused_.find(number); it != refused_.end()) {
    return it->second;
  }
  const auto it = parts_.find(number);
  if (it == parts_.end()) return nullptr;
  switch (it->second->state()) {
    case CommunicatorPart::State::kNew:
    case CommunicatorPart::State::kConnecting:
      return nullptr;
    case CommunicatorPart::State::kReady:
      return it->second.get();
    case CommunicatorPart::State::kFailed:
      break;
  }
  return it->second->error();
}

void Communicators::Abort() {
  if (parts_.empty() || abort_ != nullptr) return;
  CommunicatorAbort::Parts parts;
  for (const auto& [number, part] : parts_) parts.push_back(part);
  abort_ = CommunicatorAbort::Begin(std::move(parts));
}

bool Communicators::gone() const {
  return parts_.empty() || (abort_ != nullptr && abort_->done());
}

}  // namespace maypole
