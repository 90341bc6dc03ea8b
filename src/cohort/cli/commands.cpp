// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cohort/core/spelling.h"
#include "cohort/core/system_error.h"

namespace cohort::cli {
namespace {

struct Row {
  const char* name;
  const char* summary;
  std::unique_ptr<Command> (*make)();
};

constexpr Row kCommands[] = {
    {"launch", "run a program as a cluster on this host: coordinator, workers, parameter servers",
     make_launch_command},
    {"server", "serve as the worker or parameter server that TF_CONFIG names", make_server_command},
    {"status", "ask every task of a cluster how it is", make_status_command},
    {"config", "show the cluster that the environment tells of, and where each value comes from",
     make_config_command},
    {"check", "find out whether the tasks of a cluster can work together", make_check_command},
    {"checkpoint", "list, show, compare, check and export checkpoints", make_checkpoint_command},
};

// Returns a sentence that tells the user how to fix the error.
const char* remedy_of(const Error& error) {
  if (error.code() == ErrorCode::resource_exhausted)
    return "Give the process what the message names, or try again when the host has more to spare.";
  switch (exit_code_of(error)) {
    case 64:
      return "Correct what the message names; `cohort COMMAND --help` lists the options.";
    case 69:
      return "See whether the named task runs and its address can be reached.";
    case 75:
      return "Try again; nothing is wrong with the configuration.";
    default:
      return "This is a fault of Cohort; please report it with this message.";
  }
}

int report(const Error& error, bool is_json) {
  const int exit_code = exit_code_of(error);
  if (is_json) {
    const nlohmann::json line = {{"error", error.what()},
                                 {"code", std::string(name_of(error.code()))},
                                 {"remedy", remedy_of(error)},
                                 {"exit_code", exit_code}};
    try {
      print(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
      return exit_code;
    } catch (const Error&) {  // standard output cannot be written: the text below goes to stderr
    }
  }
  std::fprintf(stderr, "cohort: %s\n%s\n", error.what(), remedy_of(error));
  return exit_code;
}

// One parsed command line: its sub-commands with their options. Used only from run().
class CommandLine {
 public:
  CommandLine() : app_("Distributed training for LibTorch.", "cohort") {
    app_.set_version_flag("--version", COHORT_VERSION);
    app_.require_subcommand(1);
    for (const Row& row : kCommands) {
      CLI::App* sub = app_.add_subcommand(row.name, row.summary);
      std::unique_ptr<Command>& command = commands_[sub];
      command = row.make();
      sub->add_flag("--json", command->is_json,
                    "print the result, or the error, as one line of JSON");
      command->declare(*sub);
    }
  }

  int run(std::vector<std::string> words) {
    // The words after "--" are the command line of another program.
    const auto split = std::find(words.begin(), words.end(), "--");
    const std::vector<std::string> program(split == words.end() ? split : split + 1, words.end());
    words.erase(split, words.end());
    const bool is_json = std::find(words.begin(), words.end(), "--json") != words.end();
    if (!words.empty() && is_unknown(words.front())) {
      std::string names;
      std::vector<std::string> all;
      for (const Row& row : kCommands) names.append(" ").append(all.emplace_back(row.name));
      return report(usage_error("expected a command, got no command '" + words.front() +
                                "'; there are:" + names + " (cohort --help says more)" +
                                did_you_mean(words.front(), all)),
                    is_json);
    }
    std::reverse(words.begin(), words.end());  // CLI11 takes the last one first
    try {
      app_.parse(words);
    } catch (const CLI::Success& help) {
      return print_help(help);
    } catch (const CLI::ExtrasError&) {
      return report(unknown_words(), is_json);
    } catch (const CLI::RequiredError& error) {
      // The command is missing in `cohort --vresion`, but the misspelled word is what is wrong.
      const bool has_unknown = !app_.remaining(true).empty();
      return report(has_unknown ? unknown_words() : parse_error(error), is_json);
    } catch (const CLI::ParseError& error) {
      return report(parse_error(error), is_json);
    }
    Command& command = *commands_.at(app_.get_subcommands().front());
    warn_of_misspelled_variables();
    try {
      return command.run(program);
    } catch (...) {
      return report(current_error(), command.is_json);
    }
  }

 private:
  // Checked here, because CLI11 would only report that a command is missing.
  static bool is_unknown(const std::string& word) {
    return !word.starts_with("-") && std::none_of(std::begin(kCommands), std::end(kCommands),
                                                  [&](const Row& row) { return row.name == word; });
  }
  static Error usage_error(const std::string& text) {
    return Error(ErrorCode::invalid_argument, "[cli.usage] " + text);
  }
  int print_help(const CLI::Success& help) const {
    std::ostringstream text;
    const int exit_code = app_.exit(help, text, text);
    try {
      print(text.str());
      return exit_code;
    } catch (const Error& error) {
      return report(error, false);
    }
  }
  std::string see_help() const {
    const auto parsed = app_.get_subcommands();
    const std::string command = parsed.empty() ? "" : parsed.front()->get_name() + " ";
    return "`cohort " + command + "--help` lists what there is";
  }
  Error parse_error(const CLI::ParseError& error) const {
    return usage_error(std::string(error.what()) + "; " + see_help());
  }
  Error unknown_words() const {
    const std::vector<std::string> words = app_.remaining(true);
    const std::string word = words.empty() ? "" : words.front();
    return usage_error("expected only options of the command, got '" + word + "'; " +
                       (takes_program(word) ? "the program goes after --, " : "correct it, ") +
                       see_help() + similar_option(word));
  }
  std::string similar_option(const std::string& word) const {
    const auto parsed = app_.get_subcommands();
    const CLI::App& command = parsed.empty() ? app_ : *parsed.front();
    std::vector<std::string> names;
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    return word.starts_with("-") ? did_you_mean(word.substr(0, word.find('=')), names) : "";
  }
  bool takes_program(const std::string& word) const {
    return !word.starts_with("-") && app_.got_subcommand("launch");
  }

  CLI::App app_;
  std::map<const CLI::App*, std::unique_ptr<Command>> commands_;
};

}  // namespace

void print(std::string_view text) {
  errno = 0;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (is_written && std::fflush(stdout) == 0) return;
  const int number = errno;
  std::clearerr(stdout);
  throw output_error("standard output", number);
}

Error output_error(const std::string& what, int number) {
  return Error(code_of_errno(number, ErrorCode::cancelled),
               "[cli.output] expected to write to " + what + ", got: " + text_of_errno(number) +
                   "; see what reads it, and whether its disk is full");
}

int run(int argc, const char* const* argv) {
  return CommandLine().run({argv + std::min(argc, 1), argv + argc});
}

}  // namespace cohort::cli
