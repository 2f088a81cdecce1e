"""Fine-tunes a small BERT, made on the spot, with the Trainer of Transformers."""

import os

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(1)
config = BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
)
words = torch.randint(1, 100, (256, 16))
data = [
    {"input_ids": row, "attention_mask": torch.ones(16, dtype=torch.long), "labels": row[0] % 2}
    for row in words
]
arguments = TrainingArguments(
    output_dir=os.environ["GPUBED_RUN_DIR"],
    use_cpu=True,
    num_train_epochs=2,
    per_device_train_batch_size=16,
    logging_steps=4,
    save_strategy="no",
    report_to="tensorboard",
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=data)
trainer.train()
print(f"transformers: rank {arguments.process_index} of {arguments.world_size}")
