// SPDX-License-Identifier: Apache-2.0
// The common base of the ops that read files: tf_record, text_line, fixed_length_record, csv.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/data/files/buffered_reader.h"
#include "cohort/data/files/file_rows.h"
#include "cohort/data/files/file_scanner.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/rows/row_store.h"

namespace cohort::data {

// How a run reads its files; by number if possible. Part of a saved position: never renumber.
enum class FileReading : std::uint8_t { in_order = 0, by_number = 1 };

// Collects the values of a batch. Used from one stage.
class ValueBatch {
 public:
  virtual ~ValueBatch() = default;
  // Begins the next batch, of at most `count_max` values.
  virtual void begin(std::int64_t count_max) = 0;
  // If it throws, the batch is discarded, and the next call is begin().
  virtual void add(std::string_view value) = 0;
  virtual Fields take() = 0;
};

// The names of files in the op itself; nullopt: an input yields them.
using FileList = std::optional<std::vector<std::string>>;

// FileOptions themselves, or those that are a part of other options.
auto& file_part(auto& options) {
  if constexpr (requires { options.file; }) {
    return options.file;
  } else {
    return options;
  }
}

// Reads the files of its input one after the other, or num_parallel_reads of them interleaved. If a
// file cannot be opened or read further, yields one error, then the next file. Thread-safe.
class FileReaderNode : public Node {
 public:
  // The op's attributes have `files`, or an input yields the names, and `options`: FileOptions, or
  // options with those as `file`.
  FileReaderNode(std::string_view op, std::vector<NodePtr> inputs, const auto& given)
      : FileReaderNode(op, std::move(inputs), given.files, file_part(given.options)) {}

  std::int64_t cardinality() const override { return kUnknownCardinality; }
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override;

  // Opens a file at its beginning.
  virtual std::unique_ptr<FileScanner> open(const std::string& path) const = 0;
  // Converts a scanner's value to an element. If it throws, the error replaces only this element.
  virtual void make_element(std::string_view value, Fields& fields) const;
  // Collects the same elements as make_element() in a batch; null if the elements are the values
  // themselves.
  virtual std::unique_ptr<ValueBatch> start_batch() const { return nullptr; }

  // A saved position begins with `reading`. Throws failed_precondition, naming a file, if the saved
  // run read the files in another way, for example before they had indexes.
  void describe_reading(Position& at, FileReading reading, const StageContext& context) const;

 protected:
  ElementSpec make_spec() const override;
  // Random access to the elements. find_rows() adds where the rows are to a file whose names and
  // size are known; false if it must be read in order. `opened` may be null.
  virtual bool may_have_rows() const { return false; }
  virtual bool find_rows(RowFile& /*file*/, OpenedFiles* /*opened*/) const { return false; }
  virtual std::shared_ptr<const FileRows> rows_of(std::vector<RowFile> files,
                                                  std::shared_ptr<OpenedFiles> opened) const;

  const FileOptions& file_options() const { return options_; }
  BufferedReader open_reader(const std::string& path) const;

 private:
  FileReaderNode(std::string_view op, std::vector<NodePtr> inputs, const FileList& list,
                 const FileOptions& options);
  std::shared_ptr<const RowStore> rows(const StageContext& context) const;
  std::unique_ptr<Stage> start_names(const StageContext& context) const;
  std::vector<RowFile> all_files(const StageContext& context) const;
  std::shared_ptr<const RowStore> open_rows(std::vector<RowFile> files,
                                            const std::shared_ptr<OpenedFiles>& opened) const;

  NodePtr list_source_;  // the list as a dataset; null if an input yields the names
  FileOptions options_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const RowStore> rows_ COHORT_GUARDED_BY(mutex_);
};

// The stage that reads the files `names` in order, `open_files` of them at a time, one element of
// each in turn.
std::unique_ptr<Stage> start_file_reader(const FileReaderNode& node, const StageContext& context,
                                         std::unique_ptr<Stage> names, std::size_t open_files);

// invalid_argument if the spec of `names` is known and is not a scalar string.
void check_names(const Dataset& names, std::string_view op);
// data_loss unless the op has either a list of files or one input.
void check_names(const SerializedOp& op, std::string_view name);
// The number that kAutotune stands for: the order of the elements depends on it, so the graph
// stores the number that this machine chooses.
std::int64_t parallel_reads(std::int64_t number);

// Names `files` and `options`, but only the part of the options that is FileOptions.
void describe_files(auto& visit, auto& all) {
  auto& file = file_part(all.options);
  visit("compression", file.compression);
  visit("num_parallel_reads", file.num_parallel_reads);
  visit("buffer_bytes", file.buffer_bytes, kPositive);
  visit.optional("files", all.files, std::nullopt);
}

// The base of such ops, whose attributes begin with `files` and `options`.
template <class Self, class A>
class FileReaderOp : public OpNode<Self, A, FileReaderNode> {
  using Op = OpNode<Self, A, FileReaderNode>;
  using Options = decltype(A::options);

 public:
  FileReaderOp(std::vector<NodePtr> inputs, A given)
      : Op(std::move(inputs), resolved(std::move(given))) {}

  static Dataset of(const Dataset& files, Options options) {
    check_names(files, A::kOp);
    return Op::over(files.node(), {std::nullopt, std::move(options)});
  }
  // All names, in row-major order, of a tensor of any shape.
  static Dataset of(const StringTensor& files, Options options) {
    return of(Dataset::from_tensor_slices(StringTensor(files.values())), std::move(options));
  }
  static NodePtr read(SerializedOp& op, A given = {}) {
    check_names(op, A::kOp);
    return Op::read(op, std::move(given));
  }

 private:
  static A resolved(A given) {
    std::int64_t& reads = file_part(given.options).num_parallel_reads;
    reads = parallel_reads(reads);
    return given;
  }
};

}  // namespace cohort::data
