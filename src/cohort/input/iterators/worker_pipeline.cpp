// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/worker_pipeline.h"

namespace cohort::input {
namespace {

void write_all(ByteWriter& writer, const std::vector<Fields>& elements) {
  writer.varint(elements.size());
  for (const Fields& fields : elements) data::write_fields(writer, fields);
}

std::vector<Fields> read_all(ByteReader& reader) {
  std::vector<Fields> elements;
  for (std::size_t left = reader.count(); left > 0; --left) {
    elements.push_back(data::read_fields(reader));
  }
  return elements;
}

}  // namespace

void WorkerPipelinePosition::write(ByteWriter& writer) const {
  write_all(writer, undelivered);
  writer.varint(rebatcher_index);
  write_all(writer, rest);
  write_all(writer, leading);
  writer.varint(turn);
  writer.varint(shards.size());
  for (const ShardPosition& shard : shards) shard.write(writer);
}

WorkerPipelinePosition WorkerPipelinePosition::read(ByteReader& reader) {
  WorkerPipelinePosition position;
  position.undelivered = read_all(reader);
  position.rebatcher_index = reader.varint();
  position.rest = read_all(reader);
  position.leading = read_all(reader);
  position.turn = reader.varint();
  for (std::size_t left = reader.count(6); left > 0; --left) {
    position.shards.push_back(ShardPosition::read(reader));
  }
  return position;
}

WorkerPipelinePosition WorkerPipeline::position() const {
  return {.rebatcher_index = rebatcher_->index(),
          .rest = rebatcher_->rest(),
          .leading = shards_.leading(),
          .turn = shards_.turn(),
          .shards = shards_.positions()};
}

void WorkerPipeline::set(WorkerPipelinePosition position) {
  rebatcher_->restore(std::move(position.rest), position.rebatcher_index);
  shards_.set(std::move(position.shards));
  shards_.lead_with(std::move(position.leading));
  shards_.set_turn(position.turn);
}

}  // namespace cohort::input
