// SPDX-License-Identifier: Apache-2.0
// The `cohort` command. Each sub-command is a row of the table in commands.cpp.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/error.h"

namespace CLI {
class App;
}

namespace cohort::cli {

// One sub-command. declare() is called before run(). Used only from the main thread.
class Command {
 public:
  virtual ~Command() = default;
  virtual void declare(CLI::App& app) = 0;
  // `program`: the words after "--". Returns the exit code; throws cohort::Error.
  virtual int run(const std::vector<std::string>& program) = 0;
  // Whether results and errors are printed as one line of JSON on stdout.
  bool is_json = false;
};

std::unique_ptr<Command> make_launch_command();
std::unique_ptr<Command> make_server_command();
std::unique_ptr<Command> make_status_command();
std::unique_ptr<Command> make_config_command();
std::unique_ptr<Command> make_check_command();
std::unique_ptr<Command> make_checkpoint_command();

// Writes to standard output at once. Throws output_error() if it could not write everything.
void print(std::string_view text);
// The error that `what` could not be written because of this errno: resource_exhausted for a full
// disk, cancelled if the reader has closed the pipe. Both have exit code 75.
Error output_error(const std::string& what, int number);

// Runs the whole command line. Prints errors, and returns the exit code: 0 done, 64 bad usage or
// configuration, 69 peer unavailable, 70 internal, 75 try again.
int run(int argc, const char* const* argv);

}  // namespace cohort::cli
