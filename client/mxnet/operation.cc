#include "client/mxnet/operation.h"

#include <memory>
#include <utility>

namespace maypole::mxnet {
namespace {

class Operation {
 public:
  Operation(const Environment& environment, const maypole_operation& operation)
      : environment_(environment),
        name_(operation.name),
        operation_(operation) {
    operation_.name = name_.c_str();
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  ~Operation() {
    if (output_ != nullptr && output_ != input_) engine().free(output_);
    if (input_ != nullptr) engine().free(input_);
  }

  // Takes handles of its own; returns an error's text.
  std::string HoldArrays() {
    const auto input = const_cast<NDArrayHandle>(operation_.input);
    if (engine().shallow_copy(input, &input_) != 0) return EngineError();
    if (operation_.output == input) {
      output_ = input_;
    } else if (engine().shallow_copy(operation_.output, &output_) != 0) {
      return EngineError();
    }
    if (engine().reorder != nullptr) engine().reorder(input_);
    return "";
  }

  // Runs the operation in this thread, for an engine whose operations must end
  // at once and cannot report errors.
  std::string RunNow() {
    int64_t handle = 0;
    if (std::string error = Submit(&handle); !error.empty()) return error;
    std::string error = ErrorOf(frameworks::AwaitEnd(maypole(), handle));
    maypole().release(handle);
    return error;
  }

  // The engine runs Run() and then owns `operation`.
  static std::string Push(std::unique_ptr<Operation> operation, int priority) {
    const EngineFunctions& engine = operation->engine();
    const Context cpu;
    NDArrayHandle read[] = {operation->input_};
    NDArrayHandle written[] = {operation->output_};
    // If this fails, the engine has deleted the operation.
    Operation* const pushed = operation.release();
    if (engine.push_async(&Run, pushed, &Delete, &cpu, read,
                          read[0] == written[0] ? 0 : 1, written, 1,
                          &kPrioritized, priority, "maypole", false) != 0) {
      return engine.last_error();
    }
    return "";
  }

 private:
  const EngineFunctions& engine() const { return environment_.engine; }
  const frameworks::Functions& maypole() const { return environment_.maypole; }
  std::string EngineError() const { return engine().last_error(); }

  // Called by the engine.
  static void Run(void* /*run_context*/, void* completion, void* parameter) {
    auto* const operation = static_cast<Operation*>(parameter);
    operation->completion_ = *static_cast<Completion*>(completion);
    operation->Start();
  }
  static void Delete(void* parameter) {
    delete static_cast<Operation*>(parameter);
  }

  // The engine may delete this object in Complete().
  void Start() {
    int64_t handle = 0;
    if (const std::string error = Submit(&handle); !error.empty()) {
      return Complete(completion_, error);
    }
    frameworks::CallWhenDone(maypole(), handle, &Done, this);
  }

  // The arrays are ready. Returns an error's text.
  std::string Submit(int64_t* handle) {
    void* input = nullptr;
    if (engine().get_data(input_, &input) != 0 ||
        engine().get_data(output_, &operation_.output) != 0) {
      return EngineError();
    }
    operation_.input = input;
    return ErrorOf(maypole().submit(&operation_, handle));
  }

  // The error text of this thread's last call.
  std::string ErrorOf(maypole_status status) const {
    return status == MAYPOLE_OK ? "" : maypole().last_error();
  }

  // Called by libmaypole.
  static void Done(void* context, int64_t handle, maypole_status status) {
    const auto* const operation = static_cast<Operation*>(context);
    const std::string error = operation->ErrorOf(status);
    operation->maypole().release(handle);
    // A copy, because the engine deletes the operation meanwhile.
    const Completion completion = operation->completion_;
    Complete(completion, error);
  }

  const Environment& environment_;
  const std::string name_;
  maypole_operation operation_;
  NDArrayHandle input_ = nullptr;
  NDArrayHandle output_ = nullptr;
  Completion completion_ = {};
};

}  // namespace

std::string Push(const Environment& environment,
                 const maypole_operation& operation, int priority) {
  auto pushed = std::make_unique<Operation>(environment, operation);
  if (std::string error = pushed->HoldArrays(); !error.empty()) return error;
  if (environment.engine.must_block != 0) return pushed->RunNow();
  return Operation::Push(std::move(pushed), priority);
}

}  // namespace maypole::mxnet
