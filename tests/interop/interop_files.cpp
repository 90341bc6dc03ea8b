// SPDX-License-Identifier: Apache-2.0
// interop_files COMMAND: reads and writes files through the public API; values are JSON on standard
// input and output. A Python program compares them with TensorFlow's (README.md).
#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>

#include "cohort/core/error.h"
#include "cohort/data/record_io.h"
#include "tests/interop/json_form.h"
#include "tests/interop/json_pipeline.h"
#include "tests/interop/json_summaries.h"
#include "tests/interop/json_tensors.h"

namespace cohort::interop {
namespace {

// The input of a command.
struct Request {
  std::string path;
  Compression compression = Compression::none;
};

std::vector<std::string> records_in(const Request& request) {
  RecordReader reader(request.path, {.compression = request.compression});
  std::vector<std::string> records;
  while (const auto record = reader.try_next()) records.emplace_back(*record);
  return records;
}

template <class Encode>
Json write_each(const Request& request, const Json& values, Encode encode) {
  RecordWriter writer(request.path, request.compression);
  for (const Json& value : values) writer.write(encode(value));
  writer.close();
  return values.size();
}

template <class Decode>
Json read_each(const Request& request, Decode decode) {
  Json values = Json::array();
  for (const std::string& record : records_in(request)) values.push_back(decode(record));
  return values;
}

Json read_records(const Request& request, const Json&) { return read_each(request, to_hex); }

Json write_records(const Request& request, const Json& records) {
  return write_each(request, records,
                    [](const Json& hex) { return from_hex(hex.get<std::string>()); });
}

Json read_examples(const Request& request, const Json&) {
  return read_each(
      request, [](const std::string& record) { return json_of(Example::parse(record).features); });
}

Json write_examples(const Request& request, const Json& examples) {
  return write_each(request, examples,
                    [](const Json& json) { return Example{features_of(json)}.serialize(); });
}

Json read_sequences(const Request& request, const Json&) {
  return read_each(
      request, [](const std::string& record) { return json_of(SequenceExample::parse(record)); });
}

Json write_sequences(const Request& request, const Json& examples) {
  return write_each(request, examples,
                    [](const Json& json) { return sequence_example_of(json).serialize(); });
}

Json write_index(const Request& request, const Json&) { return write_record_index(request.path); }

Json write_summary_files(const Request& request, const Json& summaries) {
  write_summaries(request.path, summaries);
  return summaries.size();
}

Json write_checkpoint_folder(const Request& request, const Json& tensors) {
  write_checkpoint(request.path, tensors);
  return tensors.size();
}

Json restore_checkpoint(const Request& request, const Json& tensors) {
  return restored_values(request.path, tensors);
}

Json read_elements(const Request&, const Json& pipeline) { return elements_of(pipeline); }

struct Command {
  const char* what;
  bool reads_input;
  Json (*run)(const Request&, const Json& input);
};

const std::map<std::string, Command>& commands() {
  static const std::map<std::string, Command> kCommands{
      {"read-records", {"prints the records of PATH", false, read_records}},
      {"write-records", {"writes records to PATH", true, write_records}},
      {"read-examples", {"prints the Examples of PATH", false, read_examples}},
      {"write-examples", {"writes Examples to PATH", true, write_examples}},
      {"read-sequences", {"prints the SequenceExamples of PATH", false, read_sequences}},
      {"write-sequences", {"writes SequenceExamples to PATH", true, write_sequences}},
      {"write-index", {"writes PATH.index", false, write_index}},
      {"write-summaries", {"writes summaries into folder PATH", true, write_summary_files}},
      {"write-checkpoint", {"saves tensors in folder PATH", true, write_checkpoint_folder}},
      {"restore-checkpoint", {"prints the restored values of PATH", true, restore_checkpoint}},
      {"read-elements", {"prints the elements of a pipeline", true, read_elements}},
  };
  return kCommands;
}

int run(const Command& command, const Request& request) {
  try {
    const std::string text =
        command.reads_input ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : "null";
    std::cout << command.run(request, Json::parse(text)).dump() << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "interop_files: " << error.what() << '\n';
    return 1;
  }
}

}  // namespace
}  // namespace cohort::interop

int main(int argc, char** argv) {
  using namespace cohort::interop;
  CLI::App app{"Reads and writes files as JSON, for comparison with other programs"};
  app.require_subcommand(1);
  Request request;
  std::string compression;
  for (const auto& [name, command] : commands()) {
    CLI::App* sub = app.add_subcommand(name, command.what);
    if (name != "read-elements") sub->add_option("path", request.path)->required();
    sub->add_option("--compression", compression, "GZIP or ZLIB");
  }
  CLI11_PARSE(app, argc, argv);
  try {
    request.compression = cohort::parse_compression(compression);
  } catch (const cohort::Error& error) {
    std::cerr << "interop_files: " << error.what() << '\n';
    return 1;
  }
  return run(commands().at(app.get_subcommands().front()->get_name()), request);
}
