// LocalJob: a job of one rank. Operations end as they are submitted.
#ifndef MAYPOLE_CLIENT_LOCAL_JOB_H_
#define MAYPOLE_CLIENT_LOCAL_JOB_H_

#include "client/job.h"

namespace maypole {

class LocalJob : public Job {
 public:
  LocalJob();
  Status Start(std::span<const std::shared_ptr<Operation>> operations) override;
  std::shared_ptr<const ProcessSet> FindSet(uint32_t id) const override {
    return id == 0 ? set_ : nullptr;
  }
  void Poke(const Operation&) override {}
  Status Await(const Operation&, int) override { return Status(); }
  void Leave() override {}
  bool homogeneous() const override { return true; }

 private:
  const std::shared_ptr<const ProcessSet> set_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_LOCAL_JOB_H_
