// TimelineFile: the file of a job's timeline, in a directory that all ranks
// share.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_TIMELINE_TIMELINE_FILE_H_
#define MAYPOLE_TESTS_SIMULATION_TIMELINE_TIMELINE_FILE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tests/simulation/stage.h"
#include "worker/executor/executor_system.h"

namespace maypole::simulation {

// As FileWriter (worker/executor/file_writer.h), with a disk that is full now
// and then.
class SimulatedTimelineFile : public worker::TimelineFile {
 public:
  SimulatedTimelineFile(Stage* stage, const std::string& name,
                        std::function<void(Status)> failed)
      : stage_(stage) {
    const auto [it, is_new] = stage->timelines.try_emplace(name);
    text_ = &it->second;
    if (!is_new) {
      text_->clear();  // it is said to be of the last one of this name
      status_ = Status(Code::kInvalidArgument, "File exists");
    } else if (stage->random.OneIn(8)) {
      status_ = Status(Code::kInternal, "No space left on device");
    }
    if (status_.ok()) return;
    After([this, failed = std::move(failed)] {
      if (!closing_) failed(status_);
    });
  }

  void Write(std::string text) override {
    if (status_.ok()) *text_ += text;
  }
  void Close(std::function<void(Status)> done) override {
    closing_ = true;
    After([this, done = std::move(done)] { done(status_); });
  }

 private:
  void After(std::function<void()> what) {
    stage_->scheduler.After(
        stage_->random.Magnitude(10 * kMicrosecond, 500 * kMillisecond), life_,
        std::move(what));
  }

  Stage* const stage_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();
  std::string* text_ = nullptr;  // in the directory
  Status status_;
  bool closing_ = false;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_TIMELINE_TIMELINE_FILE_H_
