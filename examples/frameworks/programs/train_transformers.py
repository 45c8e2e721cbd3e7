"""A small BERT, trained by the Trainer of transformers; it writes to out."""

import argparse
import os
import time

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Rows(torch.utils.data.Dataset):
    def __init__(self, pause):
        self.pause = pause

    def __len__(self):
        return 64

    def __getitem__(self, n):
        time.sleep(self.pause)
        return {"input_ids": torch.tensor([n % 16] * 4), "labels": n % 2}


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--pause", type=float, default=0.0, help="seconds for each row")
args = parser.parse_args()

config = BertConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
settings = TrainingArguments(
    "out",
    max_steps=args.steps,
    save_steps=4,
    per_device_train_batch_size=4,
    use_cpu=not torch.cuda.is_available(),  # else without a GPU they do not look for each other
)
trainer = Trainer(model=BertForSequenceClassification(config), args=settings, train_dataset=Rows(args.pause))
former = get_last_checkpoint("out") if os.path.isdir("out") else None
trainer.train(resume_from_checkpoint=former)
trainer.save_model()
print("rank", settings.process_index, "of", settings.world_size, "steps", trainer.state.global_step, "from", former)
