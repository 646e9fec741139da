// Options: what the user asked maypolerun for.
//
// Purpose: turns an argument vector into a checked Options value, or into one
// line that says what is wrong. Nothing here touches the system.
//
// Thread contract: ParseOptions() uses getopt_long_only and so one global
// state: call it from one thread.
//
// Invariants of a parsed Options: ranks >= nodes >= 1, ranks and nodes within
// the limits below, command not empty (unless help or version is asked for).
#ifndef MAYPOLE_CLIENT_LAUNCHER_OPTIONS_H_
#define MAYPOLE_CLIENT_LAUNCHER_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/limits.h"
#include "common/status.h"

namespace maypole::launcher {

inline constexpr char kVersion[] = "0.1.0";
inline constexpr int kMaxNodes = 64;                // executors on this machine
inline constexpr int kMaxStartTimeout = 24 * 3600;  // seconds

struct Options {
  int ranks = 0;
  int nodes = 1;
  int slots = 0;            // by -H, all on this machine; 0: not given
  std::string coordinator;  // HOST:PORT; empty: start one for this job
  std::string secret_file;  // of that coordinator; empty: it asks for none
  int start_timeout_s = 120;
  int64_t fusion_threshold = -1;  // by the environment; -1: it says nothing
  bool verbose = false;
  bool prefix = true;
  std::string output_directory;       // empty: no files
  std::string endpoints_file;         // empty: none
  std::vector<std::string> networks;  // one address per node, or empty
  std::vector<std::string> command;

  bool help = false;
  bool version = false;
};

// args: without the program's name. own_host: this machine's name, which -H
// may give.
Status ParseOptions(const std::vector<std::string>& args,
                    const std::string& own_host, Options* out);

// The text of --help.
std::string Usage();

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OPTIONS_H_
