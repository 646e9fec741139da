// Runs a fuzz target without libFuzzer: with any compiler, as a test.
//
//   x_fuzz -runs=N [-seed=S] [-max_len=L] CORPUS...
//
// It runs all files of the corpus unchanged, then N inputs, mutated from them
// or new; equal seeds give equal inputs. A broken invariant, or a sanitizer,
// ends the process; the input is then in crash-input in the working directory
// (or $TEST_UNDECLARED_OUTPUTS_DIR). The driver also fails if FuzzerMissing()
// still lists something that was not reached after a thousand inputs or more.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// The cases of messages that no input has reached (feed.h).
extern "C" const char* FuzzerMissing() __attribute__((weak));
extern "C" void __sanitizer_set_death_callback(void (*)())
    __attribute__((weak));

namespace {

using Input = std::vector<uint8_t>;

Input current;
std::string crash_path = "crash-input";

void KeepInput() {
  const int fd = open(crash_path.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t n = write(fd, current.data(), current.size());
  close(fd);
  std::fprintf(stderr, "the input is in %s\n", crash_path.c_str());
}

void OnAbort(int) { KeepInput(); }  // then abort() continues

void Run(Input input) {
  current = std::move(input);
  // Exactly as long as the input, so sanitizers detect a read beyond it.
  const Input copy(current);
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

class Maker {
 public:
  Maker(const std::vector<Input>* corpus, uint64_t seed, size_t max_len)
      : corpus_(*corpus), random_(seed), max_len_(max_len) {}

  Input Make() {
    Input out;
    if (!corpus_.empty() && Below(8) != 0) out = corpus_[Below(corpus_.size())];
    if (out.empty()) Insert(&out, 1 + Below(64));
    for (size_t i = 1 + Below(8); i > 0; --i) Change(&out);
    if (out.size() > max_len_) out.resize(max_len_);
    return out;
  }

 private:
  size_t Below(size_t n) { return random_() % n; }
  uint8_t Byte() { return static_cast<uint8_t>(random_()); }
  void Insert(Input* out, size_t n) {
    Input bytes(n);
    for (uint8_t& b : bytes) b = Byte();
    const auto at = static_cast<ptrdiff_t>(Below(out->size() + 1));
    out->insert(out->begin() + at, bytes.begin(), bytes.end());
  }
  void Change(Input* out) {
    if (out->empty()) return Insert(out, 1 + Below(32));
    const size_t at = Below(out->size());
    const auto it = out->begin() + static_cast<ptrdiff_t>(at);
    switch (Below(5)) {
      case 0:
        (*out)[at] = Byte();
        break;
      case 1:
        (*out)[at] ^= static_cast<uint8_t>(1u << Below(8));
        break;
      case 2:
        Insert(out, 1 + Below(32));
        break;
      case 3:
        out->erase(it,
                   it + static_cast<ptrdiff_t>(1 + Below(out->size() - at)));
        break;
      default: {  // another one's end
        if (corpus_.empty()) break;
        const Input& other = corpus_[Below(corpus_.size())];
        if (other.empty()) break;
        out->resize(at);
        out->insert(out->end(),
                    other.begin() + static_cast<ptrdiff_t>(Below(other.size())),
                    other.end());
      }
    }
  }

  const std::vector<Input>& corpus_;
  std::mt19937_64 random_;
  const size_t max_len_;
};

void Read(const std::filesystem::path& path, std::vector<Input>* corpus) {
  if (std::filesystem::is_directory(path)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto& file : files) Read(file, corpus);
    return;
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(2);
  }
  corpus->emplace_back(std::istreambuf_iterator<char>(in),
                       std::istreambuf_iterator<char>());
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t runs = 0, seed = 1, max_len = 1024;
  std::vector<Input> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a.rfind("-runs=", 0) == 0) {
      runs = std::strtoull(argv[i] + 6, nullptr, 10);
    } else if (a.rfind("-seed=", 0) == 0) {
      seed = std::strtoull(argv[i] + 6, nullptr, 10);
    } else if (a.rfind("-max_len=", 0) == 0) {
      max_len = std::strtoull(argv[i] + 9, nullptr, 10);
    } else if (a.rfind('-', 0) != 0) {  // as libFuzzer, no unknown options
      Read(a, &corpus);
    }
  }
  if (const char* dir = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR")) {
    crash_path = std::string(dir) + "/crash-input";
  }
  std::signal(SIGABRT, OnAbort);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(KeepInput);
  }
  for (const Input& input : corpus) Run(input);
  Maker maker(&corpus, seed, max_len);
  for (uint64_t i = 0; i < runs; ++i) Run(maker.Make());
  if (runs >= 1000 && FuzzerMissing != nullptr && *FuzzerMissing() != '\0') {
    std::fprintf(stderr, "no input has reached%s\n", FuzzerMissing());
    return 1;
  }
  std::printf("%zu files of the corpus, %llu inputs made of seed %llu: clean\n",
              corpus.size(), static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(seed));
  return 0;
}
