// SPDX-License-Identifier: Apache-2.0
// cohort checkpoint: looks at checkpoints, compares and checks them, and exports their values.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cohort/checkpoint_files/inspection.h"
#include "cohort/cli/commands.h"
#include "cohort/core/error.h"

namespace cohort::cli {
namespace {

using checkpoint::Summary;
using Json = nlohmann::json;

Json json_of(const Summary& summary) {
  return {{"path", summary.path},         {"step", summary.step},     {"time", summary.time},
          {"strategy", summary.strategy}, {"cohort", summary.cohort}, {"bytes", summary.bytes}};
}

Json json_of_all(const Summary& summary) {
  Json json = json_of(summary);
  json["tensors"] = Json::array();
  for (const checkpoint::TensorSummary& each : summary.tensors) {
    json["tensors"].push_back(
        {{"name", each.name}, {"spec", each.spec}, {"file", each.file}, {"bytes", each.bytes}});
  }
  json["states"] = summary.states;
  json["positions"] = summary.positions;
  json["values"] = Json::object();
  for (const auto& [name, text] : summary.values) json["values"][name] = Json::parse(text);
  return json;
}

std::string line_of(const Summary& summary) {
  return fmt::format("{}  step {}  {}  {} bytes  {}\n", summary.path, summary.step, summary.time,
                     summary.bytes, summary.strategy.empty() ? "no strategy" : summary.strategy);
}

class CheckpointCommand final : public Command {
 public:
  void declare(CLI::App& app) override {
    app.require_subcommand(1);
    app.footer(
        "PATH is a checkpoint, or the folder of a CheckpointManager; then its latest checkpoint is "
        "meant.\n"
        "Exit code: 0 done, 1 the checkpoints of `diff` differ, 64 no such checkpoint, 70 a "
        "damaged "
        "one.");
    list_ = add(app, "list", "the checkpoints of a folder");
    show_ = add(app, "show", "what a checkpoint has");
    verify_ = add(app, "verify", "compare every byte with its checksum");
    diff_ = add(app, "diff", "how two checkpoints differ");
    diff_->add_option("OTHER", other_, "the second checkpoint")->required();
    export_ = add(app, "export", "write the values of variables into one safetensors file");
    export_->add_option("FILE", other_, "the new file")->required();
    export_->add_option("--prefix", prefix_,
                        "left out of the names of variables (default: the model's name)");
  }

  int run(const std::vector<std::string>& program) override {
    COHORT_CHECK(program.empty(), ErrorCode::invalid_argument,
                 "[cli.checkpoint] expected no program, got '", program.front(), "'; leave it out");
    if (list_->parsed()) return list();
    path_ = checkpoint::latest_of(path_);
    if (show_->parsed()) return show();
    if (verify_->parsed()) return verify();
    if (diff_->parsed()) return diff();
    return export_values();
  }

 private:
  CLI::App* add(CLI::App& app, const char* name, const char* summary) {
    CLI::App* const sub = app.add_subcommand(name, summary);
    sub->add_option("PATH", path_, "a checkpoint, or a folder with some")->required();
    sub->add_flag("--json", is_json, "print the result, or the error, as one line of JSON");
    return sub;
  }
  int list() const {
    Json all = Json::array();
    std::string text;
    for (const std::string& path : checkpoint::checkpoints_in(path_)) {
      const Summary summary = checkpoint::summary_of(path);
      all.push_back(json_of(summary));
      text += line_of(summary);
    }
    print(is_json ? Json{{"checkpoints", all}}.dump() + "\n" : text);
    return 0;
  }
  int show() const {
    const Summary summary = checkpoint::summary_of(path_);
    if (is_json) {
      print(json_of_all(summary).dump() + "\n");
      return 0;
    }
    std::string text = line_of(summary);
    for (const checkpoint::TensorSummary& each : summary.tensors)
      text += fmt::format("  {}  {}  {}\n", each.name, each.spec, each.file);
    for (const std::string& each : summary.states) text += "  state: " + each + "\n";
    for (const std::string& each : summary.positions) text += "  position: " + each + "\n";
    for (const auto& [name, value] : summary.values)
      text += fmt::format("  value: {} = {}\n", name, value);
    print(text);
    return 0;
  }
  int verify() const {
    checkpoint::verify(path_);
    print(is_json ? Json{{"path", path_}, {"is_whole", true}}.dump() + "\n"
                  : path_ + " is whole\n");
    return 0;
  }
  int diff() const {
    const auto differences = checkpoint::difference(path_, checkpoint::latest_of(other_));
    Json all = Json::array();
    std::string text;
    for (const checkpoint::Difference& each : differences) {
      all.push_back({{"name", each.name}, {"what", each.what}});
      text += each.name + ": " + each.what + "\n";
    }
    print(is_json ? Json{{"differences", all}}.dump() + "\n" : text);
    return differences.empty() ? 0 : 1;
  }
  int export_values() const {
    const std::size_t count = checkpoint::export_values(
        path_, other_, export_->count("--prefix") > 0 ? std::optional(prefix_) : std::nullopt);
    print(is_json ? Json{{"file", other_}, {"variables", count}}.dump() + "\n"
                  : fmt::format("{} variables of {} are in {}\n", count, path_, other_));
    return 0;
  }

  std::string path_;
  std::string other_;
  std::string prefix_;
  CLI::App* list_ = nullptr;
  CLI::App* show_ = nullptr;
  CLI::App* verify_ = nullptr;
  CLI::App* diff_ = nullptr;
  CLI::App* export_ = nullptr;
};

}  // namespace

std::unique_ptr<Command> make_checkpoint_command() { return std::make_unique<CheckpointCommand>(); }

}  // namespace cohort::cli
