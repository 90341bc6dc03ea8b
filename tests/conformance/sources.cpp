// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/sources.h"

#include <map>

#include "cohort/data/raw_readers.h"
#include "tests/conformance/pipeline.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

Dataset range(const Op& op) {
  const auto args = op.get<std::vector<std::int64_t>>("args");
  if (args.empty() || args.size() > 3) throw CaseFault("expected 1 to 3 arguments of range");
  RangeOptions options;
  if (args.size() > 1) options.start = args[0];
  if (args.size() > 2) options.step = args[2];
  options.dtype = dtype_of(op.get_or<std::string>("dtype", "int64"));
  return Dataset::range(args.size() > 1 ? args[1] : args[0], options);
}

Dataset from_tensors(const Op& op) { return Dataset::from_tensors(nest_of(op.json("value"))); }

Dataset from_tensor_slices(const Op& op) {
  return Dataset::from_tensor_slices(nest_of(op.json("value")));
}

// An item of a generator: host values without a dtype.
Nest untyped(const Json& item) {
  if (item.is_boolean()) return item.get<bool>();
  if (item.is_number_integer()) return item.get<std::int64_t>();
  if (item.is_number()) return item.get<double>();
  if (item.is_string()) return item.get<std::string>();
  Nest::Items items;
  if (item.is_array() || item.contains("tuple")) {
    for (const Json& part : item.is_array() ? item : item["tuple"]) items.push_back(untyped(part));
    return item.is_array() ? Nest::list(std::move(items)) : Nest::tuple(std::move(items));
  }
  if (item.contains("hex")) return bytes_of(item);
  Nest::Map entries;
  for (const auto& [key, part] : member(item, "dict").items()) entries.emplace(key, untyped(part));
  return Nest::map(std::move(entries));
}

Dataset from_generator(const Op& op) {
  auto items = std::make_shared<std::vector<Nest>>();
  for (const Json& item : op.json("items")) items->push_back(untyped(item));
  const bool is_cyclic = op.get_or("cycle", false);
  return Dataset::from_generator(
      [=]() -> Generator {
        return [=, next = std::size_t{0}](Nest& element) mutable {
          if (is_cyclic && !items->empty()) next %= items->size();
          if (next >= items->size()) return false;
          element = (*items)[next++];
          return true;
        };
      },
      spec_of(op.json("signature")));
}

Dataset list_files(const Op& op) {
  ListFilesOptions options;
  options.shuffle = op.get_or("shuffle", true);
  options.seed = op.maybe<std::int64_t>("seed");
  return Dataset::list_files(op.paths("patterns"), options);
}

FileOptions file_options(const Op& op) {
  FileOptions options;
  options.compression = parse_compression(op.get_or<std::string>("compression", ""));
  options.num_parallel_reads = op.parallel("parallel_reads");
  return options;
}

StringTensor names_of(const Op& op) {
  const std::vector<std::string> paths = op.paths("files");
  return StringTensor(std::span<const std::string>(paths));
}

Dataset reader_of(const Op& op, const Dataset& reader) {
  return op.get_or("raw", false) ? data::raw_reader(reader, names_of(op)) : reader;
}

// Numbers in place of file names: a wrong type on purpose.
Dataset numbers_of(const Op& op) {
  const Json& numbers = op.json("numbers");
  if (is_leaf(numbers)) return Dataset::from_tensor_slices(nest_of(numbers));
  return Dataset::from_tensor_slices(
      tensor_of(Json::array({"int64", Json::array({numbers.size()}), numbers})));
}

Dataset tfrecord(const Op& op) {
  if (op.has("numbers")) return Dataset::tf_record(numbers_of(op), file_options(op));
  return reader_of(op, Dataset::tf_record(names_of(op), file_options(op)));
}

Dataset text_line(const Op& op) {
  if (op.has("numbers")) return Dataset::text_line(numbers_of(op), file_options(op));
  return reader_of(op, Dataset::text_line(names_of(op), file_options(op)));
}

Dataset fixed_length(const Op& op) {
  FixedLengthOptions options;
  options.record_bytes = op.get<std::int64_t>("record_bytes");
  options.header_bytes = op.get_or<std::int64_t>("header_bytes", 0);
  options.footer_bytes = op.get_or<std::int64_t>("footer_bytes", 0);
  options.file = file_options(op);
  if (op.has("numbers")) return Dataset::fixed_length_record(numbers_of(op), options);
  return reader_of(op, Dataset::fixed_length_record(names_of(op), options));
}

CsvColumn column_of(const Json& column) {
  CsvColumn result{.dtype = dtype_of(column.at(0).get<std::string>()), .default_value = {}};
  if (column.size() > 1) result.default_value = untyped(column[1]);
  return result;
}

Dataset csv(const Op& op) {
  CsvOptions options;
  for (const Json& column : op.json("columns")) options.columns.push_back(column_of(column));
  options.header = op.get_or("header", false);
  options.delimiter = op.get_or<std::string>("delim", ",").at(0);
  options.na_value = op.get_or<std::string>("na_value", "");
  options.select_columns = op.get_or("select", std::vector<std::int64_t>());
  options.file.compression = parse_compression(op.get_or<std::string>("compression", ""));
  return Dataset::csv(names_of(op), std::move(options));
}

Dataset zip(const Op& op) {
  const Json& inputs = op.json("inputs");
  if (inputs.is_object()) {
    std::map<std::string, Dataset> parts;
    for (const auto& [key, ops] : member(inputs, "dict").items()) {
      parts.emplace(key, build_pipeline(ops, op.state(), op.context()));
    }
    return Dataset::zip(parts);
  }
  std::vector<Dataset> parts;
  for (const Json& ops : inputs) parts.push_back(build_pipeline(ops, op.state(), op.context()));
  return Dataset::zip(parts);
}

Dataset ragged_dense_sparse(const Op&) {
  throw CaseFault("ragged and sparse elements are not supported");
}

Dataset not_a_dataset(const Op&) { return Dataset(nullptr); }

struct Source {
  Dataset (*make)(const Op& op);
  std::vector<std::string> fields;
};

const std::map<std::string, Source>& sources() {
  static const std::map<std::string, Source> all = {
      {"range", {range, {"args", "dtype"}}},
      {"from_tensors", {from_tensors, {"value"}}},
      {"from_tensor_slices", {from_tensor_slices, {"value"}}},
      {"from_generator", {from_generator, {"items", "signature", "cycle"}}},
      {"list_files", {list_files, {"patterns", "shuffle", "seed"}}},
      {"tfrecord", {tfrecord, {"files", "compression", "parallel_reads", "numbers", "raw"}}},
      {"text_line", {text_line, {"files", "compression", "parallel_reads", "numbers", "raw"}}},
      {"fixed_length",
       {fixed_length,
        {"files", "record_bytes", "header_bytes", "footer_bytes", "compression", "parallel_reads",
         "numbers", "raw"}}},
      {"csv", {csv, {"files", "columns", "header", "delim", "select", "na_value", "compression"}}},
      {"zip", {zip, {"inputs"}}},
      {"ragged_dense_sparse", {ragged_dense_sparse, {"n"}}},
      {"not_a_dataset", {not_a_dataset, {}}}};
  return all;
}

}  // namespace

Dataset build_source(const Op& op) {
  const auto found = sources().find(op.name());
  if (found == sources().end()) throw CaseFault("unknown source op '" + op.name() + "'");
  op.allow_only(found->second.fields);
  return found->second.make(op);
}

}  // namespace cohort::conformance
