mod model_check;
