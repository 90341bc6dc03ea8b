// SPDX-License-Identifier: Apache-2.0
// idx: images and labels of two IDX files (MNIST's format) as one source, sharded by index.
#include <filesystem>

#include "cohort/core/mutex.h"
#include "cohort/data/files/file_access.h"
#include "cohort/data/files/idx_file.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

// The headers of the files when the graph was built.
struct IdxShape {
  std::int64_t count = 0;
  ElementSpec element;
};

struct IdxAttributes {
  static constexpr std::string_view kOp = "idx";
  std::vector<std::string> paths;  // absolute
  IdxShape shape;
  static void describe(auto& visit, auto& all) {
    visit("files", all.paths);
    visit("count", all.shape.count);
    visit("spec", all.shape.element);
  }
};

void check_labels(const IdxFile& images, const IdxFile& labels) {
  COHORT_CHECK(labels.all.sizes->size() == 1, ErrorCode::data_loss,
               "[data.idx] expected one dimension in the labels '", labels.path, "', got ",
               labels.all.to_string(), "; are .images and .labels swapped?");
  COHORT_CHECK(labels.all.sizes->front() == images.all.sizes->front(), ErrorCode::data_loss,
               "[data.idx] expected ", images.all.sizes->front(), " labels in '", labels.path,
               "', as many as there are images in '", images.path, "', got ",
               labels.all.sizes->front(), "; take both files from one set");
}

std::vector<IdxFile> open_files(const std::vector<std::string>& paths) {
  std::vector<IdxFile> files;
  for (const std::string& path : paths) files.push_back(IdxFile::open(path));
  if (files.size() == 2) check_labels(files[0], files[1]);
  return files;
}

IdxShape shape_of(const std::vector<IdxFile>& files) {
  std::vector<TensorSpec> fields;
  for (const IdxFile& file : files) {
    fields.push_back(
        {file.all.dtype, std::vector(file.all.sizes->begin() + 1, file.all.sizes->end())});
  }
  return {.count = files[0].all.sizes->front(), .element = ElementSpec::tuple(std::move(fields))};
}

class IdxNode final : public OpNode<IdxNode, IdxAttributes> {
 public:
  IdxNode(std::vector<NodePtr> inputs, IdxAttributes given)
      : OpNode(std::move(inputs), std::move(given)) {
    COHORT_CHECK(shape_.count >= 0 && !paths_.empty() && paths_.size() <= 2 &&
                     shape_.element.fields.size() == paths_.size(),
                 ErrorCode::invalid_argument,
                 "[data.idx] expected one or two files and their specs, got ", paths_.size(),
                 " and ", shape_.element.fields.size());
  }

  std::int64_t cardinality() const override { return shape_.count; }

  // Every run checks whether it may open the files; the first one that may reads them for all.
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    std::vector<std::string> paths;
    for (const std::string& path : paths_) {
      paths.push_back(allowed_path(path, context.options(), IdxAttributes::kOp));
      note_opened(context, path, paths.back(), IdxAttributes::kOp);
    }
    const Lock lock(mutex_);
    if (!store_) store_ = open_store(paths);
    return start_rows(*this, store_);
  }

 protected:
  ElementSpec make_spec() const override { return shape_.element; }

 private:
  std::shared_ptr<const RowStore> open_store(const std::vector<std::string>& paths) const {
    const std::vector<IdxFile> files = open_files(paths);
    const IdxShape found = shape_of(files);
    COHORT_CHECK(found.count == shape_.count && found.element.fields == shape_.element.fields,
                 ErrorCode::failed_precondition, "[data.idx] expected ", shape_.count, " elements ",
                 shape_.element.to_string(), " in '", paths[0],
                 "', as where the pipeline was built, got ", found.count, " elements ",
                 found.element.to_string());
    std::vector<Column> columns;
    for (const IdxFile& file : files) columns.push_back(file.column());
    return std::make_shared<ColumnStore>(found.count, std::move(columns));
  }

  const std::vector<std::string>& paths_ = given().paths;
  const IdxShape& shape_ = given().shape;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const RowStore> store_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace

NodePtr make_idx(SerializedOp op) { return IdxNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::idx(IdxFiles files) {
  COHORT_CHECK(!files.images.empty(), ErrorCode::invalid_argument,
               "[data.idx] expected a path in .images, got an empty one");
  data::IdxAttributes idx;
  for (const std::string& path : {files.images, files.labels}) {
    if (path.empty()) continue;
    idx.paths.push_back(std::filesystem::absolute(path).lexically_normal().string());
  }
  idx.shape = data::shape_of(data::open_files(idx.paths));
  return data::IdxNode::source(std::move(idx));
}

}  // namespace cohort
