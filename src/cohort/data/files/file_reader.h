// SPDX-License-Identifier: Apache-2.0
// The common base of the ops that read files: tf_record, text_line, fixed_length_record, csv.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/data/dataset.h"
#include "cohort/data/files/file_scanner.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/node.h"
#include "cohort/data/raw_readers.h"
#include "cohort/data/rows/row_store.h"

namespace cohort::data {

// The source of file names: a dataset, or a list in the op itself, which auto-sharding by file
// cannot shard.
struct FileNames {
  NodePtr dataset;                // of scalar strings
  std::vector<std::string> list;  // if `dataset` is null

  // invalid_argument if the spec of `names` is known and is not a scalar string.
  static FileNames of(const Dataset& names, std::string_view op);
  // All names, in row-major order, for a tensor of any shape.
  static FileNames of(const StringTensor& names);
  static FileNames from(std::vector<NodePtr> inputs, AttributeReader& attributes,
                        std::string_view op);
};

// How a run reads its files; by number if possible. Part of a saved position: never renumber.
enum class FileReading : std::uint8_t { in_order = 0, by_number = 1 };

FileOptions file_options_from(AttributeReader& attributes);

// A file of a reader. A value type.
struct ListedFile {
  std::string name;  // as the pipeline names it
  std::string path;  // allowed_path()
};

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

// Reads the files of its input one after the other, or num_parallel_reads of them interleaved. If a
// file cannot be opened or read further, yields one error, then the next file. Thread-safe.
class FileReaderNode : public Node {
 public:
  FileReaderNode(std::string_view op, FileNames names, FileOptions options);

  std::int64_t cardinality() const override { return kUnknownCardinality; }
  Attributes attributes() const override;
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override;

  // Opens a file at its beginning.
  virtual std::unique_ptr<FileScanner> open(const std::string& path) const = 0;
  // Converts a scanner's value to an element. If it throws, the error replaces only this element.
  virtual void make_element(std::string_view value, Fields& fields) const;
  // Collects the same elements as make_element() in a batch; null if the elements are the values
  // themselves.
  virtual std::unique_ptr<ValueBatch> start_batch() const { return nullptr; }

  // A saved position begins with `reading`. check_reading() throws failed_precondition, naming a
  // file, if the saved run read the files in another way, for example before they had indexes.
  static void write_reading(ByteWriter& writer, FileReading reading);
  void check_reading(ByteReader& reader, FileReading reading, const StageContext& context) const;

 protected:
  ElementSpec make_spec() const override;
  // Random access to the elements of these files; null if they must be read in order. `opened` may
  // be null.
  virtual std::shared_ptr<const RowStore> open_rows(
      const std::vector<ListedFile>& files, const std::shared_ptr<OpenedFiles>& opened) const;

  const FileOptions& file_options() const { return options_; }
  FileNames names() const { return {inputs().empty() ? nullptr : inputs()[0], list_}; }
  // The names for the copy that with_inputs() makes.
  FileNames names_in(std::vector<NodePtr> inputs) const;

 private:
  std::shared_ptr<const RowStore> rows(const StageContext& context) const;
  std::unique_ptr<Stage> start_names(const StageContext& context) const;
  std::vector<ListedFile> all_files(const StageContext& context) const;

  std::vector<std::string> list_;
  NodePtr list_source_;  // the list as a dataset
  FileOptions options_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const RowStore> rows_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::data
