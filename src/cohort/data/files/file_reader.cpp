// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/file_reader.h"

#include <algorithm>
#include <array>
#include <thread>

#include "cohort/core/error.h"
#include "cohort/data/files/file_access.h"

namespace cohort::data {
namespace {

constexpr std::int64_t kParallelReadsMax = 1024;
constexpr std::int64_t kRowFilesMax = 1 << 20;

// Whether a dataset of names yields the same names in every run, so that all can be drawn at once.
bool is_fixed_list(const Node& node) {
  static constexpr std::array<std::string_view, 4> kKeepOrder{"shard", "take", "skip", "options"};
  if (node.op() == "from_tensor_slices") return true;
  return std::ranges::find(kKeepOrder, node.op()) != kKeepOrder.end() &&
         is_fixed_list(node.input());
}

std::string_view words_for(FileReading reading) {
  return reading == FileReading::in_order ? "in order" : "by number";
}

// The stage that reads files by number. Used from one thread at a time.
class RowReader final : public RowStage {
 public:
  RowReader(const FileReaderNode& node, StageContext context, std::shared_ptr<const RowStore> store)
      : RowStage(node),
        reader_(node),
        context_(std::move(context)),
        all_(start_rows(node, std::move(store))) {}

  const RowStore& store() const override { return all_->rows()->store(); }
  std::size_t next_rows(std::span<std::int64_t> rows) override {
    return all_->rows()->next_rows(rows);
  }
  std::size_t skip_rows(std::size_t count) override { return all_->rows()->skip_rows(count); }
  std::optional<std::int64_t> rows_left() const override { return all_->rows()->rows_left(); }

  void describe_position(Position& at) override {
    reader_.describe_reading(at, FileReading::by_number, context_);
    at(*all_);
  }

 private:
  const FileReaderNode& reader_;  // kept by the stage
  StageContext context_;
  std::unique_ptr<Stage> all_;
};

}  // namespace

void check_names(const Dataset& names, std::string_view op) {
  const ElementSpec* spec = names.node()->known_spec();
  const bool may_be_names =
      spec == nullptr || (spec->fields.size() == 1 && spec->fields[0].dtype == kString &&
                          (!spec->fields[0].sizes || spec->fields[0].sizes->empty()));
  COHORT_CHECK(may_be_names, ErrorCode::invalid_argument, "[data.", op,
               "] expected file names as scalar strings, got a dataset of ", spec->to_string());
}

void check_names(const SerializedOp& op, std::string_view name) {
  if (op.attributes.has("files")) {
    COHORT_CHECK(op.inputs.empty(), ErrorCode::data_loss, "[data.", name,
                 "] expected no input beside a list of files, got ", op.inputs.size());
  } else {
    COHORT_CHECK(op.inputs.size() == 1, ErrorCode::data_loss, "[data.", name,
                 "] expected one input, the names of files, got ", op.inputs.size());
  }
}

std::int64_t parallel_reads(std::int64_t number) {
  if (number != kAutotune) return number;
  return std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, kParallelReadsMax);
}

FileReaderNode::FileReaderNode(std::string_view op, std::vector<NodePtr> inputs,
                               const FileList& list, const FileOptions& options)
    : Node(op, std::move(inputs)), options_(options) {
  COHORT_CHECK(options.num_parallel_reads >= 0 && options.num_parallel_reads <= kParallelReadsMax,
               ErrorCode::invalid_argument, "[data.", op, "] expected num_parallel_reads of 0 to ",
               kParallelReadsMax, " or kAutotune, got ", options.num_parallel_reads);
  if (list) list_source_ = Dataset::from_tensor_slices(StringTensor(*list)).node();
}

BufferedReader FileReaderNode::open_reader(const std::string& path) const {
  return {open_stream(path, options_.compression, op()), options_.buffer_bytes};
}

std::unique_ptr<Stage> FileReaderNode::make_stage(const StageContext& context) const {
  if (const std::shared_ptr<const RowStore> store = rows(context)) {
    return std::make_unique<RowReader>(*this, context, store);
  }
  return start_file_reader(
      *this, context, start_names(context),
      static_cast<std::size_t>(std::max<std::int64_t>(1, options_.num_parallel_reads)));
}

std::unique_ptr<Stage> FileReaderNode::start_names(const StageContext& context) const {
  const Node& names = list_source_ ? *list_source_ : input();
  return names.start(context.input(0));
}

void FileReaderNode::describe_reading(Position& at, FileReading reading,
                                      const StageContext& context) const {
  auto saved = static_cast<std::uint8_t>(reading);
  at(saved);
  at.check(saved <= static_cast<std::uint8_t>(FileReading::by_number), "how files are read");
  if (saved == static_cast<std::uint8_t>(reading)) return;
  Fields name;
  start_names(context)->next(name);
  internal::throw_error(
      ErrorCode::failed_precondition, "[data.", op(), "] expected a position in files read ",
      words_for(reading), ", as '", name.empty() ? "" : StringTensor::of(name[0]).value(),
      "' and the files after it are now, got one in files read ",
      words_for(static_cast<FileReading>(saved)),
      "; put the files and their indexes (FILE.index) back as they were when it was saved");
}

// The names of the files; `path` is allowed_path().
std::vector<RowFile> FileReaderNode::all_files(const StageContext& context) const {
  const std::unique_ptr<Stage> stage = start_names(context);
  std::vector<RowFile> files;
  for (Fields field; stage->next(field);) {
    std::string name(StringTensor::of(field.at(0)).value());
    std::string path = allowed_path(name, context.options(), op());
    files.push_back({.path = std::move(path), .name = std::move(name)});
  }
  return files;
}

std::shared_ptr<const RowStore> FileReaderNode::rows(const StageContext& context) const {
  const Node& names = list_source_ ? *list_source_ : input();
  if (!may_have_rows() || options_.compression != Compression::none ||
      options_.num_parallel_reads > 1 || !is_fixed_list(names)) {
    return nullptr;
  }
  const std::int64_t count = names.cardinality();
  if (count < 0 || count > kRowFilesMax) return nullptr;
  const Lock lock(mutex_);
  // Every run checks whether it may open the files. The first one that may opens the rows, and all
  // stages of the node share them.
  if (rows_) {
    all_files(context);
    return rows_;
  }
  try {
    rows_ = open_rows(all_files(context), context.opened_files());
  } catch (const Error&) {
    // Reading in order throws the same error at the right element.
    return nullptr;
  }
  return rows_;
}

// Null if the files must be read in order.
std::shared_ptr<const RowStore> FileReaderNode::open_rows(
    std::vector<RowFile> files, const std::shared_ptr<OpenedFiles>& opened) const {
  for (RowFile& file : files) {
    if (opened) opened->note_size(file.name, file.path, op());  // the number of rows depends on it
    file.file_bytes = RegularFile::open(file.path, op()).size();
    if (!find_rows(file, opened.get())) return nullptr;
  }
  return files.empty() ? nullptr : rows_of(std::move(files), opened);
}

std::shared_ptr<const FileRows> FileReaderNode::rows_of(std::vector<RowFile> files,
                                                        std::shared_ptr<OpenedFiles> opened) const {
  return std::make_shared<FileRows>(std::move(files), op(), std::move(opened));
}

void FileReaderNode::make_element(std::string_view value, Fields& fields) const {
  fields.assign(1, StringTensor(std::string(value)));
}

ElementSpec FileReaderNode::make_spec() const {
  return ElementSpec::tuple({TensorSpec{kString, std::vector<std::int64_t>{}}});
}

}  // namespace cohort::data
